// The types that activations are stored in, and bfloat16, which is the upper half of a float32.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace lpsgd {

enum class DataType : std::uint8_t { f32, bf16 };

/// Bytes of one value.
constexpr std::int64_t size_of(DataType type) {
  return type == DataType::f32 ? 4 : 2;
}

struct Bf16 {
  std::uint16_t bits = 0;
};

// Convert one value from its stored type to float32, and back. narrow() rounds to nearest even, and every NaN
// becomes the canonical one.
LPSGD_HD float widen(float x) {
  return x;
}
LPSGD_HD float widen(Bf16 x) {
  return __builtin_bit_cast(float, std::uint32_t{x.bits} << 16);
}
template <class T>
LPSGD_HD T narrow(float x);
template <>
LPSGD_HD float narrow<float>(float x) {
  return x;
}
template <>
LPSGD_HD Bf16 narrow<Bf16>(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  if (x != x) return {0x7fc0};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace lpsgd
