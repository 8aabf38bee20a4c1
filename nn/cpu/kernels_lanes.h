// What the kernels' loops are made of: vectors of 16 floats on every machine (narrower ones take several
// registers for one), loads and stores of either type of activations, and functions of a vector or of one
// value. Included by kernels_body.h alone, once per instruction set.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "core/data_type.h"

namespace lpsgd::cpu {
namespace {

constexpr std::int64_t lanes = 16;
typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));

inline Vector load(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}
inline void store(float* p, Vector v) {
  *reinterpret_cast<Vector*>(p) = v;
}

typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
typedef std::uint32_t Words __attribute__((vector_size(64)));

// GCC makes three instructions of a conversion where AVX-512 has one (and warns of the unmasked intrinsics).
inline Words words_of(Halves v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(v)));
#else
  return __builtin_convertvector(v, Words);
#endif
}
inline Halves low_halves(Words v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(v)));
#else
  return __builtin_convertvector(v, Halves);
#endif
}

inline Vector load(const Bf16* p) {
  return reinterpret_cast<Vector>(words_of(*reinterpret_cast<const Halves*>(p)) << 16);
}
/// As narrow<Bf16>() of core/data_type.h does it.
inline void store(Bf16* p, Vector v) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words out = v != v ? Words{} + 0x7fc0u : rounded;
  *reinterpret_cast<Halves*>(p) = low_halves(out);
}

// A NaN passes both.
inline Vector relu_of(Vector v) {
  return v < 0.0f ? Vector{} : v;
}
inline float relu_of(float v) {
  return v < 0.0f ? 0.0f : v;
}
inline Vector where_positive(Vector y, Vector g) {
  return y <= 0.0f ? Vector{} : g;
}
inline float where_positive(float y, float g) {
  return y <= 0.0f ? 0.0f : g;
}

typedef std::int32_t Integers __attribute__((vector_size(64)));

inline Integers to_integers(Vector v) {
  return __builtin_convertvector(v, Integers);
}
inline std::int32_t to_integers(float v) {
  return static_cast<std::int32_t>(v);
}
inline Vector from_bits(Integers bits) {
  return reinterpret_cast<Vector>(bits);
}
inline float from_bits(std::int32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// exp(x) to about one unit in the last place; 0 below -87, 2^127 above 88. A NaN gives a NaN.
template <class V>
inline V exp_of(V x) {
  constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float to_even = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V low = x - x - 87.0f, high = x - x + 88.0f;
  const V bounded = x < low ? low : (x > high ? high : x);
  const V n = (bounded * log2_e + to_even) - to_even;
  const V r = (bounded - n * ln2_high) - n * ln2_low;  // in +-ln(2)/2, where Taylor's series is short
  V p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  const V scaled = p * from_bits((to_integers(n) + 127) << 23);
  return x < low ? x - x : scaled;
}

template <class V>
inline V sigmoid_of(V x) {
  return 1.0f / (1.0f + exp_of(-x));
}

/// Near 0, where 1 - 2 / (exp(2x) + 1) cancels, the continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))).
template <class V>
inline V tanh_of(V x) {
  const V size = x < 0.0f ? -x : x;
  const V far = 1.0f - 2.0f / (exp_of(size + size) + 1.0f);
  const V s = x * x;
  const V near = size / (1.0f + s / (3.0f + s / (5.0f + s / (7.0f + s / (9.0f + s / 11.0f)))));
  const V y = size < 0.75f + (x - x) ? near : far;
  return x < 0.0f ? -y : y;
}

/// One lane or sixteen: the loops below are written once over both.
struct Wide {
  using V = Vector;
  template <class T>
  static V get(const T* p) {
    return load(p);
  }
  template <class T>
  static void put(T* p, V v) {
    store(p, v);
  }
  static constexpr std::int64_t n = lanes;
};
struct Narrow {
  using V = float;
  template <class T>
  static V get(const T* p) {
    return lpsgd::widen(*p);
  }
  template <class T>
  static void put(T* p, V v) {
    *p = lpsgd::narrow<T>(v);
  }
  static constexpr std::int64_t n = 1;
};

/// Calls body(Lane, i) for every block of Lane::n values.
template <class Body>
inline void over_values(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body.template operator()<Wide>(i);
  for (; i < n; ++i) body.template operator()<Narrow>(i);
}

/// Calls body(integral constant N, Lane, first channel) so that blocks of N * Lane::n channels cover a row.
template <class Body>
inline void over_channels(std::int64_t width, const Body& body) {
  std::int64_t c = 0;
  for (; c + 4 * lanes <= width; c += 4 * lanes) body.template operator()<4, Wide>(c);
  for (; c + lanes <= width; c += lanes) body.template operator()<1, Wide>(c);
  for (; c < width; ++c) body.template operator()<1, Narrow>(c);
}

}  // namespace
}  // namespace lpsgd::cpu
