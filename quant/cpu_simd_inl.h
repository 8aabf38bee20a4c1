// Vectors of the instruction set that this file is compiled for. Everything here, in the other cpu_*_inl.h
// and in the kernels of quant/codecs has internal linkage (namespace LPSGD_ISA::{anonymous}), so that the
// linker cannot use AVX code elsewhere in the program. Kernels handle blocks of 64 values; a partial block is
// padded with +0.
#pragma once

#ifdef LPSGD_CODEC_ON_CUDA
#error \
    "this codec is more than a rule: its CUDA kernels are wanted in quant/cuda, in a .cu file of the same name"
#endif

#include <immintrin.h>

#include <cstring>
#include <utility>

#include "core/prefetch.h"
#include "quant/codec_math_device.h"
#include "quant/codec_table.h"

#define LPSGD_INLINE [[gnu::always_inline]] inline
#define LPSGD_INLINED __attribute__((always_inline))  // of a lambda
#define LPSGD_CALLED __attribute__((noinline))  // of one that is called at several places: compiled once

// Loops over a block's vectors are unrolled where a block fits the registers.
#if defined(__AVX512F__)
#define LPSGD_UNROLL _Pragma("GCC unroll 4")
#elif defined(__AVX2__)
#define LPSGD_UNROLL _Pragma("GCC unroll 8")
#else
#define LPSGD_UNROLL
#endif

namespace lpsgd::LPSGD_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
using Native = __m512i;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
using Native = __m256i;
#else
constexpr int kLanes = 4;
using Native = __m128i;
#endif

constexpr int kBlock = 64;
constexpr int kVectors = kBlock / kLanes;               // of a block
constexpr int kRow = FixedOrderSum::partials / kLanes;  // vectors of the 32 partial sums

typedef float F __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t I __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t H __attribute__((vector_size(2 * kLanes)));
typedef std::uint8_t B __attribute__((vector_size(kLanes)));
typedef std::uint64_t Q __attribute__((vector_size(4 * kLanes)));

struct Lanes {
  using F = LPSGD_ISA::F;
  using I = LPSGD_ISA::I;
  LPSGD_INLINE static I bits(F x) { return reinterpret_cast<I>(x); }
  LPSGD_INLINE static F value(I x) { return reinterpret_cast<F>(x); }
  LPSGD_INLINE static F splat(float x) { return value(I{} + ScalarLanes::bits(x)); }  // keeps -0
  LPSGD_INLINE static I truncate(F x) { return __builtin_convertvector(x, I); }
  LPSGD_INLINE static F convert(I x) { return __builtin_convertvector(x, F); }
#if defined(__AVX2__)
  static constexpr bool fuses = true;
#else
  static constexpr bool fuses = false;
#endif
  LPSGD_INLINE static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    for (int j = 0; j < kLanes; ++j) c[j] = __builtin_fmaf(a[j], b[j], c[j]);
    return c;
#endif
  }
  LPSGD_INLINE static F dither(I half) {
    if constexpr (fuses)
      return fma(convert(half), splat(0x1p-16f), splat(0x1p-17f));  // exact, as its parts
    else
      return convert(half) * 0x1p-16f + 0x1p-17f;
  }
  LPSGD_INLINE static I round_by(F a, F of_half) {
#if defined(__AVX512F__)
    // ceil(a - dither): rounding up twice never changes it.
    constexpr int up = _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC;
    return reinterpret_cast<I>(_mm512_cvt_roundps_epi32(_mm512_sub_round_ps(a, of_half, up), up));
#else
    const I low = truncate(a);
    return low - (of_half < a - convert(low));
#endif
  }
  LPSGD_INLINE static F gather(const float* from, I at) {
#if defined(__AVX512F__)
    return _mm512_i32gather_ps(reinterpret_cast<Native>(at), from, 4);
#elif defined(__AVX2__)
    return _mm256_i32gather_ps(from, reinterpret_cast<Native>(at), 4);
#else
    F x;
    for (int j = 0; j < kLanes; ++j) x[j] = from[at[j]];
    return x;
#endif
  }
  LPSGD_INLINE static I gather(const std::int32_t* from, I at) {
    return bits(gather(reinterpret_cast<const float*>(from), at));
  }
};

// Unaligned access to any memory.
template <class V, class P>
LPSGD_INLINE V load(const P* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class P>
LPSGD_INLINE void store(P* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
LPSGD_INLINE I splat_bits(std::int32_t x) {
  return I{} + x;
}
LPSGD_INLINE F splat(float x) {
  return Lanes::splat(x);
}

/// Unsigned 16- and 8-bit lanes in memory as int32 lanes.
LPSGD_INLINE I load_halves(const void* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<I>(_mm512_cvtepu16_epi32(load<__m256i>(p)));
#elif defined(__AVX2__)
  return reinterpret_cast<I>(_mm256_cvtepu16_epi32(load<__m128i>(p)));
#else
  return __builtin_convertvector(load<H>(p), I);
#endif
}
LPSGD_INLINE I load_bytes(const void* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<I>(_mm512_cvtepu8_epi32(load<__m128i>(p)));
#elif defined(__AVX2__)
  return reinterpret_cast<I>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<long long>(p))));
#else
  return __builtin_convertvector(load<B>(p), I);
#endif
}

template <int... lane>
LPSGD_INLINE I lane_numbers(std::integer_sequence<int, lane...>) {
  return I{lane...};
}
LPSGD_INLINE I lane_numbers() {
  return lane_numbers(std::make_integer_sequence<int, kLanes>());
}

/// One bit per lane: x >= 0.
LPSGD_INLINE std::uint32_t not_negative(F x) {
#if defined(__AVX512F__)
  return _cvtmask16_u32(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ));
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ)));
#else
  return static_cast<std::uint32_t>(_mm_movemask_ps(_mm_cmpge_ps(x, _mm_setzero_ps())));
#endif
}

/// Lane j is `one` where bit j of `bits` is set, else `zero`.
LPSGD_INLINE F choose(std::uint32_t bits, F one, F zero) {
#if defined(__AVX512F__)
  return _mm512_mask_blend_ps(_cvtu32_mask16(bits), zero, one);
#else
  const I lane = splat_bits(1) << lane_numbers();
  return (splat_bits(static_cast<std::int32_t>(bits)) & lane) != 0 ? one : zero;
#endif
}

template <int by, int... lane>
LPSGD_INLINE F rotate(F x, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, x, (lane + by) % kLanes...);
}

/// x, each lane plus the lane `by` further, for by, by/2, ..., 1.
template <int by>
LPSGD_INLINE F folded(F x) {
  if constexpr (by == 0)
    return x;
  else
    return folded<by / 2>(x + rotate<by>(x, std::make_integer_sequence<int, kLanes>()));
}

/// The tree over 32 partial sums.
LPSGD_INLINE float fold(const F* partial) {
  F p[kRow];
  for (int j = 0; j < kRow; ++j) p[j] = partial[j];
  for (int h = kRow / 2; h > 0; h /= 2)
    for (int j = 0; j < h; ++j) p[j] += p[j + h];
  return folded<kLanes / 2>(p[0])[0];
}

/// The trees over two times 32 partial sums.
LPSGD_INLINE void fold_both(const F* a, const F* b, float* out) {
#if defined(__AVX512F__)
  // Lanes 0 to 7 are a's, the others b's.
  const F x = a[0] + a[1], y = b[0] + b[1];
  F sums = reinterpret_cast<F>(_mm512_shuffle_f32x4(x, y, 0x44)) +
           reinterpret_cast<F>(_mm512_shuffle_f32x4(x, y, 0xee));
  sums += reinterpret_cast<F>(_mm512_shuffle_f32x4(sums, sums, 0xb1));
  sums += reinterpret_cast<F>(_mm512_permute_ps(sums, 0x4e));
  sums += reinterpret_cast<F>(_mm512_permute_ps(sums, 0xb1));
  out[0] = sums[0];
  out[1] = sums[8];
#else
  out[0] = fold(a);
  out[1] = fold(b);
#endif
}

LPSGD_INLINE I max(I a, I b) {
  return a > b ? a : b;
}

template <int by>
LPSGD_INLINE std::int32_t max_folded(I x) {
  if constexpr (by == 0)
    return x[0];
  else
    return max_folded<by / 2>(
        max(x, Lanes::bits(rotate<by>(Lanes::value(x), std::make_integer_sequence<int, kLanes>()))));
}

LPSGD_INLINE std::int32_t max_of(I x) {
  return max_folded<kLanes / 2>(x);
}

template <class T>
LPSGD_INLINE T* advanced(T* p, std::int64_t by) {
  return p ? p + by : nullptr;
}

/// prefetch_after() of a block of values.
LPSGD_INLINE void prefetch_block_after(const float* block) {
  prefetch_after<sizeof(float) * kBlock>(block);
}

// Partial blocks are handled as full ones, in a padded copy.

[[gnu::noinline]] void pad(const void* from, std::int64_t bytes, void* to, std::size_t size) {
  std::memset(to, 0, size);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
[[gnu::noinline]] void unpad(const void* from, std::int64_t bytes, void* to) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// A block of `count` values at p, of which `left` exist: p itself, or a copy in `padded`.
struct Padded {
  alignas(64) float x[kBlock];

  LPSGD_INLINE const float* read(const float* p, std::int64_t left) {
    if (left >= kBlock) [[likely]]
      return p;
    pad(p, 4 * left, x, sizeof x);
    return x;
  }
  LPSGD_INLINE float* write(float* p, std::int64_t left) { return left >= kBlock ? p : x; }
  /// After writing to what write() gave.
  LPSGD_INLINE void finish(float* p, std::int64_t left) const {
    if (left < kBlock) [[unlikely]]
      unpad(x, 4 * left, p);
  }
};

/// v += the block at `p`, of which `left` values exist.
LPSGD_INLINE void add_block(const float* p, std::int64_t left, F* v) {
  Padded padded;
  p = padded.read(p, left);
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] += load<F>(p + k * kLanes);
}

/// v = values (+ residual) of the block at `values`, of which `left` values exist.
template <bool residuals>
LPSGD_INLINE void load_block(const float* values, const float* residual, std::int64_t left, F* v) {
  Padded padded;
  const float* p = padded.read(values, left);
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = load<F>(p + k * kLanes);
  if constexpr (residuals) add_block(residual, left, v);
}

/// add_block() and load_block() for a loop that is the first to read an array, in order.
LPSGD_INLINE void add_new_block(const float* p, std::int64_t left, F* v) {
  prefetch_block_after(p);
  add_block(p, left, v);
}
template <bool residuals>
LPSGD_INLINE void load_new_block(const float* values, const float* residual, std::int64_t left, F* v) {
  prefetch_block_after(values);
  if constexpr (residuals) prefetch_block_after(residual);
  load_block<residuals>(values, residual, left, v);
}

/// Stores the existing values of a block; with `adds` they are added to the old ones.
template <bool adds>
LPSGD_INLINE void store_block(float* out, std::int64_t left, const F* v) {
  Padded padded;
  float* p = padded.write(out, left);
  if constexpr (adds) {
    prefetch_block_after(out);
    padded.read(out, left);
  }
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
    if constexpr (adds)
      store(p + k * kLanes, lpsgd::add<Lanes>(load<F>(p + k * kLanes), v[k]));
    else
      store(p + k * kLanes, v[k]);
  }
  padded.finish(out, left);
}

/// Fixed-order sums, several at once, of m values from `from`: block(at, count, out) computes those of at
/// most one block.
template <int sums, class Block>
void sum_blocks(std::int64_t from, std::int64_t m, const Block& block, float* out) {
  std::int64_t part = FixedOrderSum::block;
  if (m <= part) return block(from, m, out);
  while (part * FixedOrderSum::block < m) part *= FixedOrderSum::block;
  float partial[sums][FixedOrderSum::partials] = {};
  for (std::int64_t at = 0, i = 0; at < m; at += part, ++i) {
    float one[sums];
    sum_blocks<sums>(from + at, m - at < part ? m - at : part, block, one);
    for (int s = 0; s < sums; ++s) partial[s][i % FixedOrderSum::partials] += one[s];
  }
  for (int s = 0; s < sums; ++s) out[s] = FixedOrderSum::fold(partial[s]);
}

/// The record of a non-finite bucket: canonical NaN scales and codes 0. The whole residual becomes NaN.
/// Returns false, encode()'s result.
[[maybe_unused, gnu::noinline]] bool write_non_finite(std::byte* record, std::int64_t scales,
                                                      std::int64_t bits, float* residual, std::int64_t m) {
  std::memset(record, 0, static_cast<std::size_t>(record_bytes(m, scales, bits)));
  for (std::int64_t i = 0; i < scales; ++i) store(record + 4 * i, canonical_nan_bits);
  if (residual)
    for (std::int64_t i = 0; i < m; ++i) residual[i] = canonical_nan();
  return false;
}

/// Decodes such a record, with or without add. Returns false, decode()'s result.
[[maybe_unused, gnu::noinline]] bool decode_non_finite(float* out, std::int64_t m) {
  for (std::int64_t i = 0; i < m; ++i) out[i] = canonical_nan();
  return false;
}

/// Sets the lanes after the `left` values or codes of a block to 0.
template <class V>
LPSGD_INLINE void clear_after(std::int64_t left, V* v) {
  if (left < kBlock) [[unlikely]] {
    for (int k = 0; k < kVectors; ++k)
      v[k] = lane_numbers() + k * kLanes < static_cast<std::int32_t>(left) ? v[k] : V{};
  }
}

/// Calls body(begin, m) for the job's buckets in turn: m values from value `begin` on. Returns whether every
/// call returned true.
template <class Body>
LPSGD_INLINE bool each_bucket(const CodingJob& job, Body body) {
  const std::int64_t n = job.n, bucket = job.bucket;
  bool all = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket)
    all &= body(begin, n - begin < bucket ? n - begin : bucket);
  return all;
}

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
