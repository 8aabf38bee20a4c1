// Whether a convolution's engine that transforms its operands (FFT, Winograd) is as accurate as one whose
// errors are those of float32 sums. It is measured, on the operation's own shape and memory.
#pragma once

#include <optional>

#include "nn/cuda/conv_run.h"
#include "nn/cuda/conv_samples.h"

namespace lpsgd::cuda {

/// Runs candidates on random operands and compares samples of their results with sums in double. It
/// overwrites the operation's memory, and leaves zeros there. The weights stay as they are: it takes memory
/// for others, and frees it.
class ConvAccuracy {
 public:
  /// An engine with a transform may have at most so many times the error of one without.
  static constexpr double largest_ratio = 3;

  /// Of `problem`, whose operation has `tensors`, of float32.
  ConvAccuracy(Context& context, const ConvProblem& problem, const ConvTensors& tensors);
  /// Whether the root mean square of the candidate's errors is at most `largest_ratio` times that of
  /// `strict`, which has no transform. DeviceError.
  bool accepts(const ConvChoice& candidate, const ConvChoice& strict);

 private:
  void prepare();
  /// Relative to the root mean square of the results.
  double error_of(const ConvChoice& choice);
  void fill();
  void clear();

  Context& context_;
  ConvProblem problem_;
  ConvTensors tensors_;
  std::optional<ConvSamples> samples_;
  DeviceMemory weights_;
  std::vector<float> bias_;
  std::optional<double> strict_error_;
};

}  // namespace lpsgd::cuda
