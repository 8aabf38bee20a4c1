#include "nn/cuda/conv_samples.h"

#include <algorithm>
#include <future>
#include <span>
#include <system_error>
#include <thread>

#include "nn/cuda/random_operand.h"

namespace lpsgd::cuda {
namespace {

constexpr std::int64_t sample_count = 256;
// Of a weight's gradient. In float32 the rounding of long sums is what counts; else the host's time is.
std::int64_t max_terms_of_weight(DataType type) {
  return std::int64_t{1} << (type == DataType::f32 ? 18 : 16);
}
constexpr std::int64_t panels = 8, panel_side = 4;  // of a weight gradient: filters and channels side by side

/// Elements of a random operand from index `first` on.
void read_operand(DataType type, std::uint32_t tensor, std::int64_t first, std::span<float> out) {
  RandomFour four{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t at = first + static_cast<std::int64_t>(i);
    if (i == 0 || at % 4 == 0) four = random_four(type, tensor, at / 4);
    out[i] = four.x[at % 4];
  }
}
double operand_at(DataType type, std::uint32_t tensor, std::int64_t i) {
  return static_cast<double>(random_four(type, tensor, i / 4).x[i % 4]);
}
double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

class Sampler {
 public:
  explicit Sampler(const ConvProblem& problem)
      : p_(problem),
        group_channels_(p_.in[2] / p_.groups),
        group_filters_(p_.out[2] / p_.groups),
        draws_(0, RandomUse::accuracy, 0, 0, 1) {}

  ConvSamples run() {
    if (p_.pass == ConvPass::weight_gradient)
      add_panels();
    else
      for (std::int64_t i = 0; i < sample_count; ++i) add_pixel(i);
    return std::move(out_);
  }

 private:
  std::int64_t below(std::int64_t n) { return draws_.below(static_cast<std::uint32_t>(n)); }
  /// The i-th of `count` places spread over 0..n-1, both ends among them.
  static std::int64_t spread(std::int64_t i, std::int64_t count, std::int64_t n) {
    return i * (n - 1) / (count - 1);
  }
  /// A row or column: one in four is at an end.
  std::int64_t place(std::int64_t i, std::int64_t n) {
    if (i % 8 == 0) return 0;
    return i % 8 == 1 ? n - 1 : below(n);
  }

  void add_pixel(std::int64_t i) {
    const bool forward = p_.pass == ConvPass::forward;
    const Shape& shape = forward ? p_.out : p_.in;
    const std::int64_t n = i % 5 == 0 ? p_.batch - 1 : below(p_.batch);
    const std::int64_t h = place(i, shape[0]), w = place(i / 8, shape[1]);
    const std::int64_t c = spread(i, sample_count, shape[2]);
    out_.at.push_back(((n * shape[0] + h) * shape[1] + w) * shape[2] + c);
    if (forward) out_.filters.push_back(c);
    out_.values.push_back(forward ? output_of(n, h, w, c) : input_gradient_of(n, h, w, c));
  }

  double output_of(std::int64_t n, std::int64_t oh, std::int64_t ow, std::int64_t filter) {
    const std::int64_t first = filter / group_filters_ * group_channels_;
    std::vector<float> x(static_cast<std::size_t>(group_channels_)), w(x.size());
    double sum = 0;
    for (std::int64_t r = 0; r < p_.kernel.h; ++r)
      for (std::int64_t s = 0; s < p_.kernel.w; ++s) {
        const std::int64_t h = oh * p_.stride.h - p_.pad.h + r, v = ow * p_.stride.w - p_.pad.w + s;
        if (h < 0 || h >= p_.in[0] || v < 0 || v >= p_.in[1]) continue;
        read_operand(p_.type, conv_input, ((n * p_.in[0] + h) * p_.in[1] + v) * p_.in[2] + first, x);
        read_operand(p_.type, conv_weights, weight_index(filter, r, s, 0), w);
        sum += dot(x, w);
      }
    return sum;
  }

  double input_gradient_of(std::int64_t n, std::int64_t h, std::int64_t v, std::int64_t channel) {
    const std::int64_t group = channel / group_channels_, first = group * group_filters_;
    std::vector<float> dy(static_cast<std::size_t>(group_filters_));
    double sum = 0;
    for (std::int64_t r = 0; r < p_.kernel.h; ++r)
      for (std::int64_t s = 0; s < p_.kernel.w; ++s) {
        const std::int64_t dh = h + p_.pad.h - r, dv = v + p_.pad.w - s;
        if (dh < 0 || dv < 0 || dh % p_.stride.h != 0 || dv % p_.stride.w != 0) continue;
        const std::int64_t oh = dh / p_.stride.h, ow = dv / p_.stride.w;
        if (oh >= p_.out[0] || ow >= p_.out[1]) continue;
        read_operand(p_.type, conv_output, ((n * p_.out[0] + oh) * p_.out[1] + ow) * p_.out[2] + first, dy);
        for (std::int64_t k = 0; k < group_filters_; ++k)
          sum += static_cast<double>(dy[static_cast<std::size_t>(k)]) *
                 operand_at(p_.type, conv_weights, weight_index(first + k, r, s, channel % group_channels_));
      }
    return sum;
  }

  /// Some at a time have a thread each, since their sums are long, and no more, since each has columns of its
  /// own.
  void add_panels() {
    const std::int64_t at_once = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 4);
    for (std::int64_t first = 0; first < panels; first += at_once) {
      std::vector<std::future<ConvSamples>> all;
      for (std::int64_t panel = first; panel < std::min(first + at_once, panels); ++panel) {
        const std::int64_t tap = below(p_.kernel.h * p_.kernel.w);
        const auto panel_here = [this, panel, tap] { return panel_of(panel, tap); };
        try {
          all.push_back(std::async(std::launch::async, panel_here));
        } catch (const std::system_error&) {  // no thread can start
          all.push_back(std::async(std::launch::deferred, panel_here));
        }
      }
      for (std::future<ConvSamples>& each : all) {
        const ConvSamples part = each.get();
        out_.at.insert(out_.at.end(), part.at.begin(), part.at.end());
        out_.values.insert(out_.values.end(), part.values.begin(), part.values.end());
      }
    }
  }

  /// The gradients of the weights of up to 4 filters for up to 4 channels, each in two places of the window,
  /// one of them `other`.
  ConvSamples panel_of(std::int64_t panel, std::int64_t other) const {
    ConvSamples out;
    const std::int64_t group = spread(panel, panels, p_.groups);
    const std::int64_t filters = std::min(panel_side, group_filters_);
    const std::int64_t channels = std::min(panel_side, group_channels_);
    const std::int64_t k0 = group * group_filters_ + spread(panel, panels, group_filters_ - filters + 1);
    const std::int64_t c0 = spread(panel * 5 % panels, panels, group_channels_ - channels + 1);
    const Columns x = columns(conv_input, p_.in, group * group_channels_ + c0, channels);
    const Columns dy = columns(conv_output, p_.out, k0, filters);
    const std::int64_t one = spread(panel, panels, p_.kernel.h * p_.kernel.w);
    for (std::int64_t k = 0; k < filters; ++k)
      for (std::int64_t c = 0; c < channels; ++c)
        for (const std::int64_t tap : {one, other}) {
          const std::int64_t r = tap / p_.kernel.w, s = tap % p_.kernel.w;
          out.at.push_back(weight_index(k0 + k, r, s, c0 + c));
          out.values.push_back(
              weight_gradient_of(x[static_cast<std::size_t>(c)], dy[static_cast<std::size_t>(k)], r, s));
        }
    return out;
  }

  /// Neighbouring channels of the samples that have a gradient: (samples, H, W) each.
  using Columns = std::vector<std::vector<float>>;
  Columns columns(std::uint32_t tensor, const Shape& shape, std::int64_t first, std::int64_t count) const {
    Columns out(static_cast<std::size_t>(count));
    std::vector<float> values(static_cast<std::size_t>(count));
    const std::int64_t pixels = shape[0] * shape[1];
    std::int64_t samples = 0;
    for (std::int64_t n = 0; n < p_.batch; ++n) samples += has_gradient(p_, n) ? 1 : 0;
    for (std::vector<float>& column : out) column.reserve(static_cast<std::size_t>(samples * pixels));
    for (std::int64_t n = 0; n < p_.batch; ++n)
      for (std::int64_t i = 0; has_gradient(p_, n) && i < pixels; ++i) {
        read_operand(p_.type, tensor, (n * pixels + i) * shape[2] + first, values);
        for (std::size_t c = 0; c < values.size(); ++c) out[c].push_back(values[c]);
      }
    return out;
  }
  double weight_gradient_of(const std::vector<float>& x, const std::vector<float>& dy, std::int64_t r,
                            std::int64_t s) const {
    const std::int64_t out_pixels = p_.out[0] * p_.out[1], in_pixels = p_.in[0] * p_.in[1];
    const std::int64_t samples = static_cast<std::int64_t>(dy.size()) / out_pixels;
    double sum = 0;
    for (std::int64_t n = 0; n < samples; ++n)
      for (std::int64_t oh = 0; oh < p_.out[0]; ++oh) {
        const std::int64_t h = oh * p_.stride.h - p_.pad.h + r;
        if (h < 0 || h >= p_.in[0]) continue;
        const float* const from = x.data() + n * in_pixels + h * p_.in[1];
        const float* const by = dy.data() + n * out_pixels + oh * p_.out[1];
        for (std::int64_t ow = 0; ow < p_.out[1]; ++ow) {
          const std::int64_t w = ow * p_.stride.w - p_.pad.w + s;
          if (w >= 0 && w < p_.in[1]) sum += static_cast<double>(from[w]) * static_cast<double>(by[ow]);
        }
      }
    return sum;
  }
  std::int64_t weight_index(std::int64_t filter, std::int64_t r, std::int64_t s, std::int64_t channel) const {
    return ((filter * p_.kernel.h + r) * p_.kernel.w + s) * group_channels_ + channel;
  }

  const ConvProblem& p_;
  std::int64_t group_channels_, group_filters_;
  PhiloxSequence draws_;  // of places, not of operands: its counter's last word is 1
  ConvSamples out_;
};

}  // namespace

ConvSamples sample_convolution(const ConvProblem& problem) {
  return Sampler(problem).run();
}

bool has_gradient(const ConvProblem& problem, std::int64_t sample) {
  if (problem.pass != ConvPass::weight_gradient) return true;
  const std::int64_t wanted = std::clamp<std::int64_t>(
      max_terms_of_weight(problem.type) / (problem.out[0] * problem.out[1]), 1, problem.batch);
  // Every (batch / wanted)-th, the last sample among them.
  return (sample + 1) * wanted / problem.batch > sample * wanted / problem.batch;
}

}  // namespace lpsgd::cuda
