#include "nn/cuda/conv_accuracy.h"

#include <fmt/format.h>

#include <cmath>

#include "core/clock.h"
#include "core/log.h"

namespace lpsgd::cuda {
namespace {

// Of engines without a transform: tf32 has about 3e-4. Above it their results are not those of the operands.
constexpr double largest_strict_error = 1e-2;

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
  return static_cast<std::size_t>(elements_of_tensor(p, tensor)) * sizeof(float);
}

}  // namespace

ConvAccuracy::ConvAccuracy(Context& context, const ConvProblem& problem, const ConvTensors& tensors)
    : context_(context), problem_(problem), tensors_(tensors) {}

void ConvAccuracy::prepare() {
  if (samples_) return;
  const double begin = now_seconds();
  for (auto& [tensor, memory] : tensors_) {
    if (tensor == conv_weights && problem_.pass != ConvPass::weight_gradient) {
      weights_ = DeviceMemory(context_.device, bytes_of_tensor(problem_, conv_weights));
      memory = weights_.data();
    }
    if (tensor == conv_bias) {
      bias_.resize(static_cast<std::size_t>(problem_.out[2]));
      copy_bytes(bias_.data(), memory, bytes_of_tensor(problem_, conv_bias), context_.stream);
      context_.stream.synchronize();
    }
  }
  samples_ = sample_convolution(problem_);
  log::debug("{} results in double: {:.3f} s", samples_->values.size(), now_seconds() - begin);
}

void ConvAccuracy::fill() {
  for (const auto& [tensor, memory] : tensors_) {
    if (tensor == conv_bias || tensor == written_by(problem_.pass)) continue;
    auto* const to = static_cast<float*>(const_cast<void*>(memory));
    check(launch_random_operand(static_cast<std::uint32_t>(tensor), to, elements_of_tensor(problem_, tensor),
                                context_.handle()));
    if (tensor != conv_output) continue;
    const std::int64_t each = elements_of_tensor(problem_, tensor) / problem_.batch;
    for (std::int64_t n = 0; n < problem_.batch; ++n)
      if (!has_gradient(problem_, n))
        zero_bytes(to + n * each, static_cast<std::size_t>(each) * sizeof(float), context_.stream);
  }
}

void ConvAccuracy::clear() {
  for (const auto& [tensor, memory] : tensors_)
    if (tensor != conv_bias)
      zero_bytes(const_cast<void*>(memory), bytes_of_tensor(problem_, tensor), context_.stream);
  context_.stream.synchronize();
}

double ConvAccuracy::error_of(const ConvChoice& choice) {
  const ConvRun run(context_, problem_, choice, tensors_);
  const float* result = nullptr;
  for (const auto& [tensor, memory] : tensors_)
    if (tensor == written_by(problem_.pass)) result = static_cast<const float*>(memory);
  std::vector<float> found(samples_->at.size());
  try {
    fill();
    run();
    for (std::size_t i = 0; i < found.size(); ++i)
      copy_bytes(&found[i], result + samples_->at[i], sizeof(float), context_.stream);
    context_.stream.synchronize();
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
    const double expected = choice.fused ? sum : samples_->values[i];
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

}  // namespace lpsgd::cuda
