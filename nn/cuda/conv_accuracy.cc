#include "nn/cuda/conv_accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/clock.h"
#include "core/log.h"

namespace lpsgd::cuda {
namespace {

// Of engines without a transform: tf32 has about 3e-4. Above it their results are not those of the operands.
constexpr double largest_strict_error = 1e-2;
// Both are sums of the same values, in another order.
constexpr double largest_statistics_error = 1e-4;

std::int64_t elements_of_tensor(const ConvProblem& p, ConvTensor tensor) {
  switch (tensor) {
    case conv_input:
      return p.batch * p.in[0] * p.in[1] * p.in[2];
    case conv_weights:
      return p.out[2] * p.kernel.h * p.kernel.w * (p.in[2] / p.groups);
    case conv_output:
      return p.batch * p.out[0] * p.out[1] * p.out[2];
    case conv_bias:
      break;
  }
  return p.out[2];
}
std::size_t bytes_of_tensor(const ConvProblem& p, ConvTensor tensor) {
  return static_cast<std::size_t>(elements_of_tensor(p, tensor) * size_of(p.type));
}

}  // namespace

ConvAccuracy::ConvAccuracy(Context& context, const ConvProblem& problem, const ConvTensors& tensors,
                           const SmallConvTensors& own)
    : context_(context), problem_(problem), tensors_(tensors), own_(own) {}

void ConvAccuracy::prepare() {
  if (samples_) return;
  const double begin = now_seconds();
  if (problem_.pass != ConvPass::weight_gradient) {
    weights_ = DeviceMemory(context_.device, bytes_of_tensor(problem_, conv_weights));
    for (auto& [tensor, memory] : tensors_)
      if (tensor == conv_weights) memory = weights_.data();
    own_.weights = weights_.data();
  }
  if (problem_.bias) {
    bias_.resize(static_cast<std::size_t>(problem_.out[2]));
    copy_bytes(bias_.data(), own_.bias, bias_.size() * sizeof(float), context_.stream);
    context_.stream.synchronize();
  }
  samples_ = sample_convolution(problem_);
  log::debug("{} results in double: {:.3f} s", samples_->values.size(), now_seconds() - begin);
}

void ConvAccuracy::fill() {
  for (const auto& [tensor, memory] : tensors_) {
    if (tensor == conv_bias || tensor == written_by(problem_.pass)) continue;
    auto* const to = static_cast<std::byte*>(const_cast<void*>(memory));
    check(launch_random_operand(problem_.type, static_cast<std::uint32_t>(tensor), to,
                                elements_of_tensor(problem_, tensor), context_.handle()));
    if (tensor != conv_output) continue;
    const std::size_t each = bytes_of_tensor(problem_, tensor) / static_cast<std::size_t>(problem_.batch);
    for (std::int64_t n = 0; n < problem_.batch; ++n)
      if (!has_gradient(problem_, n))
        zero_bytes(to + static_cast<std::size_t>(n) * each, each, context_.stream);
  }
}

void ConvAccuracy::clear() {
  for (const auto& [tensor, memory] : tensors_)
    if (tensor != conv_bias)
      zero_bytes(const_cast<void*>(memory), bytes_of_tensor(problem_, tensor), context_.stream);
  if (problem_.pass == ConvPass::weight_gradient)
    zero_bytes(own_.weight_gradient,
               static_cast<std::size_t>(elements_of_tensor(problem_, conv_weights)) * sizeof(float),
               context_.stream);
  context_.stream.synchronize();
}

double ConvAccuracy::error_of(const ConvChoice& choice) {
  const ConvRun run(context_, problem_, choice, tensors_);
  Result result{nullptr, problem_.type, choice.fused};
  for (const auto& [tensor, memory] : tensors_)
    if (tensor == written_by(problem_.pass)) result.memory = memory;
  return error_of(result, [&] { run(); });
}

double ConvAccuracy::error_of(const Result& result, const std::function<void()>& run) {
  const auto size = static_cast<std::size_t>(size_of(result.type));
  std::vector<float> found(samples_->at.size());
  try {
    fill();
    run();
    std::vector<std::uint32_t> bits(found.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      copy_bytes(&bits[i],
                 static_cast<const std::byte*>(result.memory) + samples_->at[i] * size_of(result.type), size,
                 context_.stream);
    context_.stream.synchronize();
    // (A bfloat16 is the upper half of a float.)
    for (std::size_t i = 0; i < found.size(); ++i)
      found[i] = std::bit_cast<float>(result.type == DataType::f32 ? bits[i] : bits[i] << 16);
  } catch (...) {
    clear();
    throw;
  }
  clear();
  double squares = 0, errors = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double bias =
        bias_.empty() ? 0 : static_cast<double>(bias_[static_cast<std::size_t>(samples_->filters[i])]);
    const double sum = samples_->values[i] + bias;
    // What ReLU sets to 0 says nothing, and must not count for one engine alone.
    if (problem_.relu && sum <= 0) continue;
    const double expected = result.fused ? sum : samples_->values[i];
    squares += sum * sum;
    errors += (static_cast<double>(found[i]) - expected) * (static_cast<double>(found[i]) - expected);
  }
  return std::sqrt(errors / squares);
}

bool ConvAccuracy::accepts(const ConvChoice& candidate, const ConvChoice& strict) {
  const double begin = now_seconds();
  prepare();
  if (!strict_error_) strict_error_ = error_of(strict);
  const double error = error_of(candidate);
  const bool accepted = *strict_error_ <= largest_strict_error && error <= largest_ratio * *strict_error_;
  log::debug("{}: error {:.3g}, that of {} is {:.3g}: {}, {:.3f} s to check", candidate.plan->text(), error,
             strict.plan->text(), *strict_error_, accepted ? "accepted" : "refused", now_seconds() - begin);
  return accepted;
}

/// Of the statistics that forward takes for a batch norm, against those of a pass over its output: the means'
/// distance in standard deviations, and the relative one of 1 / sqrt(variance + eps). The larger of all.
double ConvAccuracy::statistics_error(const SmallConv& own) {
  const std::int64_t channels = problem_.out[2];
  const auto n = static_cast<std::size_t>(channels);
  const Cut cut = cut_rows(problem_.batch * problem_.out[0] * problem_.out[1], channels);
  const std::int64_t partials =
      std::max<std::int64_t>(small_conv_norm_partials(own), cut.parts * cut.channels);
  const std::size_t floats = 8 * n * sizeof(float), doubles = n * sizeof(double);
  const std::size_t counters = static_cast<std::size_t>(std::max(cut.tiles, 1)) * sizeof(unsigned);
  DeviceMemory memory(context_.device, floats + doubles + counters),
      sums(context_.device, static_cast<std::size_t>(partials) * sizeof(double2));
  zero_bytes(memory.data(), memory.bytes(), context_.stream);
  auto* const arrays = reinterpret_cast<float*>(memory.data());
  NormState state;
  state.weight = arrays;
  state.bias = arrays + channels;
  state.running_mean = arrays + 2 * channels;
  state.running_variance = arrays + 3 * channels;
  state.mean = arrays + 4 * channels;
  state.scale = arrays + 5 * channels;
  state.inverse = reinterpret_cast<double*>(arrays + 8 * channels);
  state.finished = reinterpret_cast<unsigned*>(state.inverse + channels);
  state.partials = reinterpret_cast<double2*>(sums.data());

  std::vector<float> means[2];
  std::vector<double> inverses[2];
  try {
    fill();
    for (const int i : {0, 1}) {
      if (i == 0)
        check(run_small_conv(own, own_, state, context_.handle()));
      else
        check(launch_norm_statistics(problem_.type, own_.output, cut, state, context_.handle()));
      means[i].resize(n);
      inverses[i].resize(n);
      copy_bytes(means[i].data(), state.mean, n * sizeof(float), context_.stream);
      copy_bytes(inverses[i].data(), state.inverse, doubles, context_.stream);
    }
    context_.stream.synchronize();
  } catch (...) {
    clear();
    throw;
  }
  clear();
  double error = 0;
  for (std::size_t c = 0; c < n; ++c) {
    const double distance = static_cast<double>(means[0][c]) - static_cast<double>(means[1][c]);
    const double ratio = inverses[0][c] / inverses[1][c];
    for (const double e : {std::abs(distance) * inverses[1][c], std::abs(ratio - 1)}) {
      if (std::isnan(e)) return e;
      error = std::max(error, e);
    }
  }
  return error;
}

bool ConvAccuracy::accepts(const SmallConv& own) {
  const double begin = now_seconds();
  prepare();
  const bool gradient = problem_.pass == ConvPass::weight_gradient;
  Result result{own_.output, problem_.type, true};
  if (problem_.pass == ConvPass::input_gradient) result.memory = own_.input;
  if (gradient) result = {own_.weight_gradient, DataType::f32, true};
  const double error = error_of(result, [&] { run_own_conv(context_, own, problem_.pass, own_); });
  const double statistics = problem_.pass == ConvPass::forward ? statistics_error(own) : 0;
  const bool accepted = error <= (gradient ? largest_own_gradient_error : largest_own_error) &&
                        statistics <= largest_statistics_error;
  log::debug("{}: error {:.3g}, of statistics {:.3g}: {}, {:.3f} s to check", small_conv_name, error,
             statistics, accepted ? "accepted" : "refused", now_seconds() - begin);
  return accepted;
}

}  // namespace lpsgd::cuda
