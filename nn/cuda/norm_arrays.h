// Arrays of a batch norm to check kernels with, in place of an operation's own.
#pragma once

#include "core/device.h"
#include "nn/cuda/context.h"

namespace lpsgd::cuda {

/// All values are zero. `partials` sums of two values, `counters` for launches.
class NormArrays {
 public:
  NormArrays(Context& context, std::int64_t channels, std::int64_t partials, int counters)
      : floats_(context.device, static_cast<std::size_t>(arrays * channels)),
        inverse_(context.device, static_cast<std::size_t>(channels)),
        partials_(context.device, static_cast<std::size_t>(partials)),
        finished_(context.device, static_cast<std::size_t>(counters)) {
    zero_bytes(floats_.data(), floats_.view().size_bytes(), context.stream);
    zero_bytes(inverse_.data(), inverse_.view().size_bytes(), context.stream);
    zero_bytes(finished_.data(), finished_.view().size_bytes(), context.stream);
    float* next = floats_.data();
    const auto take = [&] { return std::exchange(next, next + channels); };
    state_.weight = take(), state_.bias = take();
    state_.mean = take(), state_.scale = take();
    state_.weight_gradient = take(), state_.bias_gradient = take();
    state_.gradient_mean = take(), state_.slope = take();
    state_.running_mean = take(), state_.running_variance = take();
    state_.inverse = inverse_.data();
    state_.partials = partials_.data();
    state_.finished = finished_.data();
  }

  const NormState& state() const { return state_; }
  /// Weight, bias, mean and scale, one behind the other.
  std::span<float> constants() { return floats_.view().first(floats_.view().size() / arrays * 4); }
  /// What launch_norm_gradient_sums() writes: four arrays, one behind the other.
  std::span<float> sums() { return floats_.view().subspan(constants().size(), constants().size()); }

 private:
  static constexpr std::int64_t arrays = 10;
  DeviceBuffer<float> floats_;
  DeviceBuffer<double> inverse_;
  DeviceBuffer<double2> partials_;
  DeviceBuffer<unsigned> finished_;
  NormState state_;
};

}  // namespace lpsgd::cuda
