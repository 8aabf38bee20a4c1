// CUDA's bfloat16 as far as lpsgd's kernels use it: rounding from float32.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  unsigned short bits;
};

/// To nearest, ties to even; every NaN becomes 0x7fff.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (x != x) return {0x7fff};
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.bits;
}
