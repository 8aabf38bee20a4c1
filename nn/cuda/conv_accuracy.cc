#include "nn/cuda/conv_accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/clock.h"
#include "core/log.h"
#include "nn/cuda/norm_arrays.h"

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
    std::vector<Bf16> low(problem_.type == DataType::bf16 ? bias_.size() : 0);
    for (const auto& [tensor, memory] : tensors_)
      if (tensor == conv_bias) copy_bytes(low.data(), memory, low.size() * sizeof(Bf16), context_.stream);
    context_.stream.synchronize();
    plans_bias_ = bias_;
    std::ranges::transform(low, plans_bias_.begin(), [](Bf16 x) { return widen(x); });
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
  Result result{nullptr, problem_.type, choice.fused, &plans_bias_, false};
  for (const auto& [tensor, memory] : tensors_)
    if (tensor == written_by(problem_.pass)) result.memory = memory;
  return error_of(result, [&] { run(); });
}

void ConvAccuracy::on_random_operands(const std::function<void()>& run) {
  try {
    fill();
    run();
    context_.stream.synchronize();
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

double ConvAccuracy::error_of(const Result& result, const std::function<void()>& run) {
  const std::int64_t size = size_of(result.type);
  std::vector<std::uint32_t> bits(samples_->at.size());
  on_random_operands([&] {
    run();
    for (std::size_t i = 0; i < bits.size(); ++i)
      copy_bytes(&bits[i], static_cast<const std::byte*>(result.memory) + samples_->at[i] * size,
                 static_cast<std::size_t>(size), context_.stream);
  });
  const std::vector<float>& biases = *result.bias;
  double squares = 0, errors = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const double bias =
        biases.empty() ? 0 : static_cast<double>(biases[static_cast<std::size_t>(samples_->filters[i])]);
    const double sum = samples_->values[i] + bias;
    // What ReLU sets to 0 says nothing, and must not count for one engine alone.
    if (problem_.relu && sum <= 0) continue;
    double expected = result.fused ? sum : samples_->values[i];
    if (result.rounds) expected = widen(narrow<Bf16>(static_cast<float>(expected)));
    const float found = result.type == DataType::f32 ? std::bit_cast<float>(bits[i])
                                                     : widen(Bf16{static_cast<std::uint16_t>(bits[i])});
    const double error = static_cast<double>(found) - expected;
    squares += sum * sum;
    errors += error * error;
  }
  return std::sqrt(errors / squares);
}

bool ConvAccuracy::accepts(const ConvChoice& candidate, const ConvChoice& strict) {
  const double begin = now_seconds();
  prepare();
  if (!strict_error_) strict_error_ = error_of(strict);
  const double error = error_of(candidate);
  const bool accepted = *strict_error_ <= largest_strict_error && error <= largest_ratio * *strict_error_;
  log::debug("{}: error {:.3g}, that of {} is {:.3g}: {}, {:.3f} s to check", description_of(candidate),
             error, description_of(strict), *strict_error_, accepted ? "accepted" : "refused",
             now_seconds() - begin);
  return accepted;
}

/// Of the statistics that forward takes for a batch norm, against those of a pass over its output: the means'
/// distance in standard deviations, and the relative one of 1 / sqrt(variance + eps). The larger of all.
double ConvAccuracy::statistics_error(const SmallConv& own) {
  const std::int64_t channels = problem_.out[2];
  const auto n = static_cast<std::size_t>(channels);
  const Cut cut = cut_rows(problem_.type, problem_.batch * problem_.out[0] * problem_.out[1], channels);
  const std::int64_t partials =
      std::max<std::int64_t>(small_conv_norm_partials(own), cut.parts * cut.channels);
  NormArrays arrays(context_, channels, partials, cut.tiles);
  const NormState& state = arrays.state();

  struct Statistics {
    std::vector<float> mean;
    std::vector<double> inverse;
  } found{std::vector<float>(n), std::vector<double>(n)}, expected = found;
  const auto read = [&](Statistics& to) {
    copy_bytes(to.mean.data(), state.mean, n * sizeof(float), context_.stream);
    copy_bytes(to.inverse.data(), state.inverse, n * sizeof(double), context_.stream);
  };
  on_random_operands([&] {
    check(run_small_conv(own, own_, state, context_.handle()));
    read(found);
    check(launch_norm_statistics(problem_.type, own_.output, cut, state, context_.handle()));
    read(expected);
  });
  double worst = 0;
  for (std::size_t c = 0; c < n; ++c) {
    const double distance = static_cast<double>(found.mean[c]) - static_cast<double>(expected.mean[c]);
    const double ratio = found.inverse[c] / expected.inverse[c];
    for (const double error : {std::abs(distance) * expected.inverse[c], std::abs(ratio - 1)}) {
      if (std::isnan(error)) return error;
      worst = std::max(worst, error);
    }
  }
  return worst;
}

bool ConvAccuracy::accepts(const SmallConv& own) {
  const double begin = now_seconds();
  prepare();
  const bool gradient = problem_.pass == ConvPass::weight_gradient;
  Result result{own_.output, problem_.type, true, &bias_, true};
  if (problem_.pass == ConvPass::input_gradient) result.memory = own_.input;
  if (gradient) result = {own_.weight_gradient, DataType::f32, true, &bias_, false};
  const double error = error_of(result, [&] { run_own_conv(context_, own, problem_.pass, own_); });
  const double statistics = problem_.pass == ConvPass::forward ? statistics_error(own) : 0;
  const bool accepted = error <= (gradient ? largest_own_gradient_error : largest_own_error) &&
                        statistics <= largest_statistics_error;
  log::debug("{}: error {:.3g}, of statistics {:.3g}: {}, {:.3f} s to check", small_conv_name, error,
             statistics, accepted ? "accepted" : "refused", now_seconds() - begin);
  return accepted;
}

}  // namespace lpsgd::cuda
