// Arrays of float32 or bfloat16, read and written as float, and sums over them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace lpsgd::emulated {

/// Rounds as tensor cores round float32 operands.
inline float to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000u) & 0xffffe000u);
}

/// Rounds to nearest with so many bits fewer than float32's 24.
inline double lose_bits(double x, int bits) {
  if (bits == 0 || !std::isfinite(x)) return x;
  const std::uint64_t unit = std::uint64_t{1} << (29 + bits);
  return std::bit_cast<double>((std::bit_cast<std::uint64_t>(x) + unit / 2) & ~(unit - 1));
}

inline float read(const void* array, bool bf16, std::int64_t i) {
  if (!bf16) return static_cast<const float*>(array)[i];
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(array)[i]) << 16);
}
inline void write(void* array, bool bf16, std::int64_t i, float x) {
  if (!bf16) {
    static_cast<float*>(array)[i] = x;
    return;
  }
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if (x == x) bits += 0x7fffu + (bits >> 16 & 1u);  // to nearest, ties to even
  static_cast<std::uint16_t*>(array)[i] = static_cast<std::uint16_t>(bits >> 16);
}

/// n values as float, rounded to TF32 if asked.
inline std::vector<float> all_of(const void* array, bool bf16, std::int64_t n, bool tf32 = false) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = read(array, bf16, i);
    out[static_cast<std::size_t>(i)] = tf32 ? to_tf32(x) : x;
  }
  return out;
}

/// The sum of a[i] b[i], in double.
double dot(const float* a, const float* b, std::int64_t n);
/// to[i] += factor * from[i].
void add_scaled(double factor, const float* from, double* to, std::int64_t n);

}  // namespace lpsgd::emulated
