// Whether a candidate for a convolution gives right results on this device. It is measured, on the
// operation's own shape and memory, with random operands: samples of the results are compared with sums in
// double.
#pragma once

#include <functional>
#include <optional>

#include "nn/cuda/conv_run.h"
#include "nn/cuda/conv_samples.h"

namespace lpsgd::cuda {

/// A check overwrites the operation's memory, and leaves zeros there. The weights stay as they are: it takes
/// memory for others, and frees it. All errors are root mean squares, relative to that of the results.
class ConvAccuracy {
 public:
  /// An engine with a transform may have at most so many times the error of one without.
  static constexpr double largest_ratio = 3;
  /// Of our own kernels: results in bfloat16, against rounded sums, so that rounding does not count; and in
  /// float32.
  static constexpr double largest_own_error = 2e-3, largest_own_gradient_error = 1e-4;

  /// Of `problem`, whose operation has `tensors`, or `own` for our own kernels.
  ConvAccuracy(Context& context, const ConvProblem& problem, const ConvTensors& tensors,
               const SmallConvTensors& own);
  /// Whether the error of an engine that transforms its operands (FFT, Winograd; float32), or of a plan over
  /// blocks of pixels, is at most `largest_ratio` times that of `strict`, which does neither. DeviceError.
  bool accepts(const ConvChoice& candidate, const ConvChoice& strict);
  /// Whether our own kernel's errors are at most those above, and whether forward's statistics for a batch
  /// norm are those of its output. DeviceError.
  bool accepts(const SmallConv& own);

 private:
  struct Result {
    const void* memory = nullptr;
    DataType type = DataType::f32;
    bool fused = false;  // with the bias
    const std::vector<float>* bias = nullptr;
    bool rounds = false;  // compare with sums that are rounded to `type`
  };

  void prepare();
  /// run() queues launches and copies to the host; they have ended when it returns.
  void on_random_operands(const std::function<void()>& run);
  double error_of(const ConvChoice& choice);
  double error_of(const Result& result, const std::function<void()>& run);
  double statistics_error(const SmallConv& own);
  void fill();
  void clear();

  Context& context_;
  ConvProblem problem_;
  ConvTensors tensors_;
  SmallConvTensors own_;
  std::optional<ConvSamples> samples_;
  DeviceMemory weights_;
  std::vector<float> bias_, plans_bias_;  // as our own kernels read it, and as plans do
  std::optional<double> strict_error_;
};

}  // namespace lpsgd::cuda
