// float16: IEEE 754's binary16.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace lpsgd {

struct Fp16 {
  std::uint16_t bits = 0;
};

/// The same value as float32; every NaN becomes the canonical one.
LPSGD_HD float widen(Fp16 x) {
  const std::uint32_t sign = (std::uint32_t{x.bits} & 0x8000u) << 16;
  const std::uint32_t rest = x.bits & 0x7fffu;
  if (rest > 0x7c00u) return __builtin_bit_cast(float, std::uint32_t{0x7fc00000u});
  std::uint32_t bits = 0;
  if (rest >= 0x7c00u) {
    bits = 0x7f800000u;
  } else if (rest >= 0x0400u) {
    bits = (rest << 13) + 0x38000000u;
  } else {
    bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(rest) * 0x1p-24f);
  }
  return __builtin_bit_cast(float, sign | bits);
}

}  // namespace lpsgd
