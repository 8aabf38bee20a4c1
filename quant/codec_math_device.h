// The codecs' arithmetic, for host and device: what docs/numerics.md fixes, written once. The per-value rules
// are templates over a `Lanes` type, so that the same source runs on one value (ScalarLanes; a GPU thread)
// and on a SIMD vector of them (the CPU kernels). Every operation rounds once, in the order written.
//
// A Lanes type has F (float lanes), I (int32 lanes of the same count) and: bits(F) -> I and value(I) -> F
// (reinterpretation), truncate(F) -> I, convert(I) -> F (both exact where used here), gather(array, I) -> F
// or I, splat(float) -> F, fma(F, F, F) -> F where `fuses`, dither(I) -> F (below), and round_by(F a, F
// dither) -> I: floor(a), or one more where dither < a - floor(a), for 0 <= a < 2^16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/data_type.h"
#include "core/fp16.h"
#include "core/philox.h"

namespace lpsgd {

inline constexpr std::int32_t canonical_nan_bits = 0x7fc00000;
inline constexpr std::int32_t infinity_bits = 0x7f800000;
inline constexpr std::int32_t magnitude_mask = 0x7fffffff;

struct ScalarLanes {
  using F = float;
  using I = std::int32_t;
  LPSGD_HD static I bits(F x) { return __builtin_bit_cast(I, x); }
  LPSGD_HD static F value(I x) { return __builtin_bit_cast(F, x); }
  LPSGD_HD static F splat(float x) { return x; }
  LPSGD_HD static I truncate(F x) { return static_cast<I>(x); }
  LPSGD_HD static F convert(I x) { return static_cast<F>(x); }
  template <class T>
  LPSGD_HD static T gather(const T* from, I at) {
    return from[at];
  }
  static constexpr bool fuses = true;
  LPSGD_HD static F fma(F a, F b, F c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
  }
  /// Half k % 2 of a word, as dither() takes it: on a GPU the bits of 2^23 + d.
  LPSGD_HD static I half_of(std::uint32_t word, int k) {
#ifdef __CUDA_ARCH__
    return static_cast<I>(__byte_perm(word, 0x4b00u, k % 2 ? 0x5432u : 0x5410u));
#else
    return static_cast<I>(k % 2 ? word >> 16 : word & 0xffffu);
#endif
  }
  /// (2d+1)/131072, by its bits: a GPU converts integers slowly.
  LPSGD_HD static F dither(I half) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(value(half), 0x1p-16f, -0x1.fffffep6f);  // exactly
#else
    return value((half << 7) | 0x3f800040) - 1.0f;
#endif
  }
  LPSGD_HD static I round_by(F a, F of_half) {
#ifdef __CUDA_ARCH__
    // ceil(a - dither): rounding up twice never changes it. The sum's unit is 1.
    return bits(__fadd_ru(__fsub_ru(a, of_half), 0x1.8p23f)) - 0x4b400000;
#else
    const I low = truncate(a);
    return low + (of_half < a - convert(low) ? 1 : 0);
#endif
  }
  LPSGD_HD static F square_root(F x) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
  }
};

LPSGD_HD bool is_finite(float x) {
  return (ScalarLanes::bits(x) & magnitude_mask) < infinity_bits;
}
LPSGD_HD float canonical_nan() {
  return ScalarLanes::value(canonical_nan_bits);
}

/// x, or the canonical NaN in place of any NaN.
template <class L>
LPSGD_HD typename L::F canonical(typename L::F x) {
  const typename L::F nan = L::value(typename L::I{} + canonical_nan_bits);
  return x == x ? x : nan;
}

template <class L>
LPSGD_HD typename L::F magnitude(typename L::F x) {
  if constexpr (std::is_same_v<L, ScalarLanes>)
    return __builtin_fabsf(x);  // free on a GPU
  else
    return L::value(L::bits(x) & magnitude_mask);
}

/// a + b rounded once; a NaN result is the canonical one.
template <class L>
LPSGD_HD typename L::F add(typename L::F a, typename L::F b) {
  return canonical<L>(a + b);
}

// ---- Sizes (docs/wire-format.md)

/// 32-bit words that hold the codes of m values.
LPSGD_HD std::int64_t code_words(std::int64_t m, std::int64_t bits) {
  return (m * bits + 31) / 32;
}

/// Bytes of a bucket's record: its scales, then its codes.
LPSGD_HD std::int64_t record_bytes(std::int64_t m, std::int64_t scales, std::int64_t bits) {
  return 4 * (scales + code_words(m, bits));
}

/// How many of m >= 1 values topk keeps: max(1, floor(density*m + 0.5)).
LPSGD_HD std::int64_t topk_kept(double density, std::int64_t m) {
  const auto kept = static_cast<std::int64_t>(density * static_cast<double>(m) + 0.5);
  return kept < 1 ? 1 : kept < m ? kept : m;
}

// ---- The dither

/// Whether the dither (2d+1)/131072 is below `fraction`, as lanes of 1 or 0.
template <class L>
LPSGD_HD typename L::I dithers_up(typename L::I half, typename L::F fraction) {
  const typename L::I one = typename L::I{} + 1;
  return L::dither(half) < fraction ? one : one - 1;
}

// ---- Quotients

/// whole / by, for integers 0 <= whole <= by < 2^16: times the reciprocal in two parts, which gives the
/// quotient's bits (the tests try every code).
template <class L, int by>
LPSGD_HD typename L::F quotient_of_integers(typename L::F whole) {
  if constexpr (L::fuses) {
    constexpr float high = static_cast<float>(1.0 / by);
    constexpr float low = static_cast<float>(1.0 / by - static_cast<double>(high));
    return L::fma(whole, L::splat(high), whole * low);
  } else {
    return whole / static_cast<float>(by);
  }
}

/// Quotients by one divisor > 0 of numbers whose magnitude is at most the divisor's: times its reciprocal,
/// then one correction by fma (Markstein; Brisebarre, Muller and Raina, "Accelerating correctly rounded
/// floating-point division when the divisor is known in advance", 2004). From 2^-40 on a quotient is the
/// correctly rounded one; a smaller one comes out below 2^-39, with the same sign or 0. Where no rule can see
/// the difference this is division. Divisors out of the range in which nothing underflows are scaled into it,
/// exactly.
template <class L>
class Divider {
 public:
  LPSGD_HD explicit Divider(float by = 1.0f)
      : up_(by < 0x1p-32f   ? 0x1p96f
            : by > 0x1p100f ? 0x1p-60f
                            : 1.0f),
        minus_(-by * up_),
        reciprocal_(-1.0f / minus_),
        by_(by) {}

  LPSGD_HD typename L::F operator()(typename L::F x) const {
    if constexpr (L::fuses) {
      const typename L::F scaled = x * up_, inverse = L::splat(reciprocal_), near = scaled * inverse;
      return L::fma(L::fma(near, L::splat(minus_), scaled), inverse, near);
    } else {
      return x / by_;
    }
  }

 private:
  float up_, minus_, reciprocal_, by_;
};

// ---- The sum over a bucket

/// The fixed-order sum: blocks of 4096 values, each with 32 partial sums. The block sums are added by the
/// same rule.
struct FixedOrderSum {
  static constexpr int partials = 32;
  static constexpr std::int64_t block = 4096;

  /// Adds the 32 partial sums of one block: for h = 16, 8, 4, 2, 1 sum j += sum j+h.
  LPSGD_HD static float fold(float* p) {
    for (int h = partials / 2; h > 0; h /= 2)
      for (int j = 0; j < h; ++j) p[j] += p[j + h];
    return p[0];
  }
};

/// sum / count as float32; 0 of no values.
LPSGD_HD float mean(float sum, std::int64_t count) {
  return count == 0 ? 0.0f : sum / static_cast<float>(count);
}

// ---- fp16 and bf16: round to nearest even, NaN canonical

LPSGD_HD std::uint16_t to_bf16(float x) {
  return narrow<Bf16>(x).bits;
}

LPSGD_HD float from_bf16(std::uint16_t h) {
  return canonical<ScalarLanes>(widen(Bf16{h}));
}

LPSGD_HD std::uint16_t to_fp16(float x) {
  const auto bits = static_cast<std::uint32_t>(ScalarLanes::bits(x));
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 2^16 or more
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 1/2 leaves the units of 2^-24 in the low bits, rounded to nearest even.
    const float shifted = ScalarLanes::value(static_cast<std::int32_t>(magnitude)) + 0.5f;
    return static_cast<std::uint16_t>(sign |
                                      (static_cast<std::uint32_t>(ScalarLanes::bits(shifted)) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

LPSGD_HD float from_fp16(std::uint16_t h) {
  return widen(Fp16{h});
}

}  // namespace lpsgd
