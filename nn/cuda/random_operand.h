// Random operands that the host can compute, too: tensors in [-1, 1), whose elements depend on the tensor's
// number and on their own index alone. Each is a multiple of 2^-23 in float32 and of 2^-7 in bfloat16, so
// none is rounded. For host and device.
#pragma once

#include <cstdint>

#include "core/data_type.h"
#include "core/philox.h"

namespace lpsgd::cuda {

/// Elements 4 i to 4 i + 3 of a tensor that is stored in `type`.
struct RandomFour {
  float x[4];
};
LPSGD_HD RandomFour random_four(DataType type, std::uint32_t tensor, std::int64_t i) {
  const int bits = type == DataType::f32 ? 24 : 8;
  const Philox4x32 draw = philox4x32(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
                                     tensor, 0, 0, static_cast<std::uint32_t>(RandomUse::accuracy));
  RandomFour out{};
  const float unit = 2.0f / static_cast<float>(1u << bits);
  for (int k = 0; k < 4; ++k) out.x[k] = static_cast<float>(draw.x[k] >> (32 - bits)) * unit - 1.0f;
  return out;
}

}  // namespace lpsgd::cuda
