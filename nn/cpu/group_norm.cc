// Group normalisation, with the ReLU behind it in one pass. A thread has whole samples. Forward and backward
// read a sample twice, the second time from the caches unless it is large.
//
// As in batch_norm.cc the moments of a block of pixels are taken in float32 around its first pixel, and those
// of blocks and channels are combined in double.
#include <cmath>

#include "nn/cpu/channel_rows.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class GroupNormOp final : public Op {
 public:
  GroupNormOp(Context& context, const Binding& b, const GroupNormDesc& desc)
      : context_(context),
        b_(b),
        k_(context.k.of<T>()),
        eps_(desc.eps),
        channels_(b.shape.back()),
        pixels_(b.elements() / b.batch / channels_),
        groups_(desc.groups),
        in_group_(channels_ / groups_),
        width_(channels_ * pixels_of_row(channels_, pixels_)),
        rows_(pixels_ * channels_ / width_),
        scratch_(size(context.threads)) {
    for (Scratch& s : scratch_) {
      for (Buffer<float>* array : {&s.a, &s.b, &s.mean, &s.scale, &s.shift, &s.slope, &s.offset})
        *array = Buffer<float>(size(width_));
      for (std::vector<double>* array : {&s.sum_g, &s.sum_gx, &s.weight_gradient, &s.bias_gradient})
        array->resize(size(channels_));
      s.groups.resize(size(groups_));
      s.first.resize(size(groups_));
      s.second.resize(size(groups_));
    }
    if (b.training) kept_.resize(size(b.batch * groups_));
  }

  void forward(const Pass&) override {
    context_.parallel(b_.batch, [&](int thread, std::int64_t first, std::int64_t last) {
      Scratch& s = scratch_[size(thread)];
      for (std::int64_t sample = first; sample < last; ++sample) {
        const std::int64_t at = sample * pixels_ * channels_;
        const T* const x = as<T>(b_.inputs[0].value) + at;
        take_moments(x, s);
        set_constants(s);
        k_.normalize(x, nullptr, as<T>(b_.output) + at, rows_, width_, width_, constants(s), b_.relu, false);
        if (b_.training) std::copy(s.groups.begin(), s.groups.end(), kept_.begin() + sample * groups_);
      }
    });
  }

  void backward() override {
    const T* const g = as<T>(b_.output_gradients[0]);
    for (Scratch& s : scratch_) {
      std::fill(s.weight_gradient.begin(), s.weight_gradient.end(), 0.0);
      std::fill(s.bias_gradient.begin(), s.bias_gradient.end(), 0.0);
    }
    context_.parallel(b_.batch, [&](int thread, std::int64_t first, std::int64_t last) {
      Scratch& s = scratch_[size(thread)];
      for (std::int64_t sample = first; sample < last; ++sample) {
        const std::int64_t at = sample * pixels_ * channels_;
        const T* const x = as<T>(b_.inputs[0].value) + at;
        std::copy_n(kept_.begin() + sample * groups_, groups_, s.groups.begin());
        set_constants(s);
        take_gradient_sums(g + at, x, s);
        set_gradient_constants(s);
        if (b_.inputs[0].gradient)
          k_.group_norm_gradient(g + at, x, as<T>(b_.inputs[0].gradient) + at, rows_, width_, constants(s),
                                 b_.relu, s.offset.data(), s.slope.data());
      }
    });
    for (std::int64_t c = 0; c < channels_; ++c) {
      double weight = 0, bias = 0;
      for (const Scratch& s : scratch_) {
        weight += s.weight_gradient[size(c)];
        bias += s.bias_gradient[size(c)];
      }
      b_.parameters[0].gradient[c] = static_cast<float>(weight);
      b_.parameters[1].gradient[c] = static_cast<float>(bias);
    }
  }

 private:
  struct Group {
    float mean = 0, inverse = 0;  // inverse: 1 / sqrt(variance + eps)
  };
  /// Of a thread. Arrays of float have a row's width.
  struct Scratch {
    Buffer<float> a, b;  // of a block: sums of each channel
    Buffer<float> mean, scale, shift, slope, offset;
    std::vector<Group> groups;
    std::vector<double> first, second;                   // of each group: mean, sum of squared differences
    std::vector<double> sum_g, sum_gx;                   // of a sample's channels
    std::vector<double> weight_gradient, bias_gradient;  // of the thread's samples
  };

  static NormConstants constants(const Scratch& s) { return {s.mean.data(), s.scale.data(), s.shift.data()}; }
  double in_group_values() const { return static_cast<double>(pixels_ * in_group_); }

  template <class Body>
  void blocks(const Body& body) const {
    const std::int64_t step = std::max(min_rows, block_floats / width_);
    for (std::int64_t row = 0; row < rows_; row += step) body(row * width_, std::min(step, rows_ - row));
  }
  /// Calls body(f, c) for the group's places f of a row, and their channels c.
  template <class Body>
  void each_of_group(std::int64_t group, const Body& body) const {
    for (std::int64_t pixel = 0; pixel < width_; pixel += channels_)
      for (std::int64_t c = group * in_group_; c < (group + 1) * in_group_; ++c)
        body(size(pixel + c), size(c));
  }

  void take_moments(const T* x, Scratch& s) const {
    std::fill(s.first.begin(), s.first.end(), 0.0);
    std::fill(s.second.begin(), s.second.end(), 0.0);
    double before = 0;
    blocks([&](std::int64_t at, std::int64_t rows) {
      k_.row_moments(x + at, rows, width_, s.a.data(), s.b.data());
      const double count = static_cast<double>(rows), inverse = 1 / count;
      const double values = count * static_cast<double>(width_ / groups_);
      for (std::int64_t group = 0; group < groups_; ++group) {
        double sum = 0, m2 = 0, differences = 0;
        each_of_group(group, [&](std::size_t f, std::size_t) { sum += static_cast<double>(s.a[f]); });
        const double mean = sum / values;
        each_of_group(group, [&](std::size_t f, std::size_t) {
          const double d = static_cast<double>(s.a[f]) * inverse - mean;
          m2 += static_cast<double>(s.b[f]);
          differences += d * d;
        });
        join_moments(s.first[size(group)], s.second[size(group)], before, mean, m2 + count * differences,
                     values);
      }
      before += values;
    });
    for (std::int64_t group = 0; group < groups_; ++group)
      s.groups[size(group)] = {
          static_cast<float>(s.first[size(group)]),
          static_cast<float>(1 / std::sqrt(s.second[size(group)] / in_group_values() + eps_))};
  }

  void set_constants(Scratch& s) const {
    const float *weight = b_.parameters[0].value, *bias = b_.parameters[1].value;
    for (std::int64_t group = 0; group < groups_; ++group) {
      const Group& g = s.groups[size(group)];
      each_of_group(group, [&](std::size_t f, std::size_t c) {
        s.mean[f] = g.mean;
        s.scale[f] = weight[c] * g.inverse;
        s.shift[f] = bias[c];
      });
    }
  }

  void take_gradient_sums(const T* g, const T* x, Scratch& s) const {
    std::fill(s.sum_g.begin(), s.sum_g.end(), 0.0);
    std::fill(s.sum_gx.begin(), s.sum_gx.end(), 0.0);
    blocks([&](std::int64_t at, std::int64_t rows) {
      k_.norm_gradient_sums(g + at, x + at, rows, width_, width_, constants(s), b_.relu, s.a.data(),
                            s.b.data());
      for (std::int64_t pixel = 0; pixel < width_; pixel += channels_)
        for (std::int64_t c = 0; c < channels_; ++c) {
          s.sum_g[size(c)] += static_cast<double>(s.a[size(pixel + c)]);
          s.sum_gx[size(c)] += static_cast<double>(s.b[size(pixel + c)]);
        }
    });
  }

  /// With h = g * weight and n = (x - mean) * inverse: dx = (h - mean of h - n * mean of h n) * inverse. Adds
  /// the sample to the parameters' gradients.
  void set_gradient_constants(Scratch& s) const {
    const float* const weight = b_.parameters[0].value;
    for (std::int64_t group = 0; group < groups_; ++group) {
      const auto inverse = static_cast<double>(s.groups[size(group)].inverse);
      double h = 0, hx = 0;
      for (std::int64_t c = group * in_group_; c < (group + 1) * in_group_; ++c) {
        h += static_cast<double>(weight[c]) * s.sum_g[size(c)];
        hx += static_cast<double>(weight[c]) * s.sum_gx[size(c)];
        s.weight_gradient[size(c)] += s.sum_gx[size(c)] * inverse;
        s.bias_gradient[size(c)] += s.sum_g[size(c)];
      }
      const auto offset = static_cast<float>(h / in_group_values() * inverse);
      const auto slope = static_cast<float>(hx / in_group_values() * inverse * inverse * inverse);
      each_of_group(group, [&](std::size_t f, std::size_t) {
        s.offset[f] = offset;
        s.slope[f] = slope;
      });
    }
  }

  Context& context_;
  Binding b_;
  const ActivationKernels<T>& k_;
  double eps_;
  std::int64_t channels_, pixels_, groups_, in_group_, width_, rows_;  // pixels of a sample; rows of them
  std::vector<Scratch> scratch_;
  std::vector<Group> kept_;  // of all samples' groups
};

}  // namespace

std::unique_ptr<Op> make_group_norm(Context& context, const Binding& binding, const GroupNormDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<GroupNormOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
