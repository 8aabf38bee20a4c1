// The building blocks of the kernels' loops: vectors of 16 floats, and loads and stores of both types of
// activations. Vectors have 16 floats on every machine; narrower registers hold one in several parts.
// Included by kernels_body.h alone, once per instruction set.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "core/data_type.h"
#include "core/prefetch.h"
#include "nn/cpu/vector.h"
#include "nn/maths_device.h"

namespace lpsgd::cpu {
namespace {

inline Vector load(const float* p) {
  Vector out;
  for (std::size_t i = 0; i < part_count; ++i) out.at[i] = load_part(p + i * per_part);
  return out;
}
inline void store(float* p, Vector v) {
  for (std::size_t i = 0; i < part_count; ++i) store_part(p + i * per_part, v.at[i]);
}

typedef std::uint16_t Halves __attribute__((vector_size(register_bytes / 2), aligned(2), may_alias));
typedef std::uint32_t Words __attribute__((vector_size(register_bytes)));

// GCC makes three instructions of a conversion that AVX-512 has as one, and warns of the unmasked intrinsics.
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
  Vector out;
  for (std::size_t i = 0; i < part_count; ++i)
    out.at[i] =
        reinterpret_cast<Vector::Part>(words_of(*reinterpret_cast<const Halves*>(p + i * per_part)) << 16);
  return out;
}
/// Rounds as narrow<Bf16>() of core/data_type.h does.
inline void store(Bf16* p, Vector v) {
  for (std::size_t i = 0; i < part_count; ++i) {
    const Words bits = reinterpret_cast<Words>(v.at[i]);
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words out = v.at[i] != v.at[i] ? Words{} + 0x7fc0u : rounded;
    *reinterpret_cast<Halves*>(p + i * per_part) = low_halves(out);
  }
}

// Non-temporal stores bypass the caches. Later stores may overtake them until fence_stores().
#if defined(__AVX512F__)
constexpr bool has_non_temporal_stores = true;
inline void store_non_temporal(float* p, Vector v) {  // aligned to 64 bytes
  _mm512_stream_ps(p, reinterpret_cast<__m512>(v.at[0]));
}
inline void fence_stores() {
  _mm_sfence();
}
#else
constexpr bool has_non_temporal_stores = false;
inline void store_non_temporal(float* p, Vector v) {
  store(p, v);
}
inline void fence_stores() {}
#endif

/// The lanes that nn/maths_device.h's functions run on.
struct Sixteen {
  using V = Vector;
  static V from_bits(Integers bits) { return bits_as<float>(bits); }
  static Integers to_integers(V v) {
    Integers out;
    for (std::size_t i = 0; i < part_count; ++i) out.at[i] = __builtin_convertvector(v.at[i], Integers::Part);
    return out;
  }
  static V sqrt(V v) {
    for (Vector::Part& p : v.at)
      for (std::size_t i = 0; i < per_part; ++i) p[i] = __builtin_sqrtf(p[i]);
    return v;
  }
};

/// Sixteen lanes and one lane: the loops are written once over both.
struct Wide {
  using V = Vector;
  using Maths = Sixteen;
  template <class T>
  static V get(const T* p) {
    prefetch_after(p);
    return load(p);
  }
  template <class T>
  static void put(T* p, V v) {
    store(p, v);
  }
  static Integers all(std::int32_t i) { return i; }
  static Integers bits(V v) { return bits_as<std::int32_t>(v); }
  static constexpr std::int64_t n = lanes;
};
struct Narrow {
  using V = float;
  using Maths = maths::One;
  template <class T>
  static V get(const T* p) {
    return lpsgd::widen(*p);
  }
  template <class T>
  static void put(T* p, V v) {
    *p = lpsgd::narrow<T>(v);
  }
  static std::int32_t all(std::int32_t i) { return i; }
  static std::int32_t bits(V v) { return __builtin_bit_cast(std::int32_t, v); }
  static constexpr std::int64_t n = 1;
};

/// Calls body<Lane>(i) for every block of Lane::n values.
template <class Body>
inline void over_values(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body.template operator()<Wide>(i);
  for (; i < n; ++i) body.template operator()<Narrow>(i);
}

/// Calls body<N, Lane>(first channel, first row, end of rows) for blocks of N * Lane::n channels and some
/// rows that cover an array. If rows are narrow, a block has all rows. If they are wide, blocks are in the
/// order of memory, which the processor prefetches: that is 2 to 3 times as fast as a few channels of many
/// rows. Rows of a page or more may be taken a few at a time, which is as fast.
template <class Body>
inline void over_channels(std::int64_t rows, std::int64_t width, const Body& body) {
  constexpr std::int64_t narrow = 4 * lanes, page = 1024, block_rows = 4;
  if (width > narrow) {
    const auto in_order = [&](std::int64_t first, std::int64_t last) {
      over_values(width, [&]<class L>(std::int64_t c) { body.template operator()<1, L>(c, first, last); });
    };
    std::int64_t r = 0;
    if (width >= page)
      for (; r + block_rows <= rows; r += block_rows) in_order(r, r + block_rows);
    for (; r < rows; ++r) in_order(r, r + 1);
    return;
  }
  std::int64_t c = 0;
  for (; c + narrow <= width; c += narrow) body.template operator()<4, Wide>(c, 0, rows);
  for (; c + lanes <= width; c += lanes) body.template operator()<1, Wide>(c, 0, rows);
  for (; c < width; ++c) body.template operator()<1, Narrow>(c, 0, rows);
}

}  // namespace
}  // namespace lpsgd::cpu
