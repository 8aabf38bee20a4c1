// The arithmetic of layers, which devices have it, and what is computed twice to save memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/device.h"

namespace lpsgd {

/// fp32: everything is float32.
/// tf32 (GPUs only): matrix products round their float32 operands to ten bits of fraction.
/// bf16: activations, their gradients and a working copy of the weights are stored as bfloat16. Every layer
/// still computes and sums in float32, and weights, their gradients and statistics stay float32.
enum class Compute : std::uint8_t { fp32, tf32, bf16 };

/// What a step's backward computes again, instead of forward keeping it for backward. `batch_norm`: outputs
/// of batch normalisations, with the sum and the ReLU behind them, where all that they are computed from is
/// kept anyway. Results are the same bits.
enum class Recompute : std::uint8_t { none, batch_norm };

/// Why the device cannot do this arithmetic, and which it can; nothing if it can. DeviceError if there is no
/// such device.
std::optional<std::string> unsupported(Compute compute, Device device = Device::cpu());

}  // namespace lpsgd
