// The optimizer over an arena in device memory: one kernel, and more if gradients are clipped, get noise, or
// are scaled tensor by tensor. In builds
// without CUDA, nn/cuda/absent.cc implements make_device_sgd().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "nn/maths_device.h"

namespace lpsgd {

struct OptimizerOptions;

class DeviceSgd {
 public:
  virtual ~DeviceSgd() = default;
  /// Queues the new rates on the stream. The host waits only if it is two steps ahead.
  virtual void set_rates(const maths::StepRates& rates) = 0;
  /// Queues one step on the stream, with the same launches every time.
  virtual void step(std::span<float> parameters, std::span<float> gradients) = 0;
  virtual std::span<float> momentum() = 0;  // device memory
  virtual std::span<float> second_moment() = 0;
};

/// A tensor in the arena: whether it has weight decay, and LARS's ratio.
struct OptimizedTensor {
  std::int64_t begin = 0, elements = 0;
  bool decayed = true, adapted = false;
};

/// Tensors start at multiples of 16.
std::unique_ptr<DeviceSgd> make_device_sgd(const OptimizerOptions& options, std::size_t arena,
                                           const std::vector<OptimizedTensor>& tensors, StreamView stream,
                                           std::uint32_t seed);

}  // namespace lpsgd
