// Random operands that the host can compute, too: tensors of float32 in [-1, 1), of 24 bits each, whose
// elements depend on the tensor's number and on their own index alone. For host and device.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace lpsgd::cuda {

/// Elements 4 i to 4 i + 3 of a tensor.
struct RandomFour {
  float x[4];
};
LPSGD_HD RandomFour random_four(std::uint32_t tensor, std::int64_t i) {
  const Philox4x32 draw = philox4x32(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
                                     tensor, 0, 0, static_cast<std::uint32_t>(RandomUse::accuracy));
  RandomFour out{};
  for (int k = 0; k < 4; ++k) out.x[k] = static_cast<float>(draw.x[k] >> 8) * 0x1p-23f - 1.0f;
  return out;
}

}  // namespace lpsgd::cuda
