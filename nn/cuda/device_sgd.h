// The optimizer over an arena in device memory: one kernel, and one more if gradients are clipped. In builds
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
  virtual void set_rates(maths::SgdRates rates) = 0;
  /// Queues one step on the stream, with the same launches every time.
  virtual void step(std::span<float> parameters, std::span<const float> gradients) = 0;
  virtual std::span<float> momentum() = 0;  // device memory
};

/// `decayed` says for each 16 values of the arena whether they have weight decay. Tensors start at multiples
/// of 16.
std::unique_ptr<DeviceSgd> make_device_sgd(const OptimizerOptions& options, std::size_t arena,
                                           const std::vector<std::uint8_t>& decayed, StreamView stream);

}  // namespace lpsgd
