// The optimizer over an arena in device memory: one kernel, and one more where gradients are clipped. Only in
// builds with CUDA; nn/cuda/absent.cc stands in elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"

namespace lpsgd {

struct OptimizerOptions;

class DeviceSgd {
 public:
  virtual ~DeviceSgd() = default;
  /// Queues on the stream; the host does not wait, but where it is two steps ahead.
  virtual void set_rate(float lr) = 0;
  /// Queues one step on the stream, the same launches every time.
  virtual void step(std::span<float> parameters, std::span<const float> gradients) = 0;
  virtual std::span<float> momentum() = 0;  // device memory
};

/// `decayed`: whether weight decay is for the values in each run of 16; tensors start at multiples of 16.
std::unique_ptr<DeviceSgd> make_device_sgd(const OptimizerOptions& options, std::size_t arena,
                                           const std::vector<std::uint8_t>& decayed, StreamView stream);

}  // namespace lpsgd
