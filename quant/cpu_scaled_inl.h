// The driver of codecs whose buckets have at most one scale and codes of a fixed width: everything but the
// rule that turns values into codes and back. A Rule has
//   static constexpr int bits;       of a code: 1, 2, 4, 8 or 16
//   static constexpr bool dithered;  code() wants dither halves
//   void start(float scale);         the next codes are of a bucket of this scale
//   I code(F v, I half) const;
//   F value(I code) const;           of any code, whose lanes may carry other bits above their own
// Record: the scale, then the codes.
#pragma once

#include "quant/cpu_codes_inl.h"
#include "quant/cpu_dither_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// What a bucket is scaled by.
enum class Scale : std::uint8_t {
  none,     // nothing, and nothing travels
  largest,  // the largest magnitude
  norm,     // the 2-norm, or the largest magnitude where that is larger or the squares overflow
  mean,     // of the magnitudes
};

struct BucketScan {
  std::int32_t largest = 0;  // bits of the largest magnitude; not below infinity_bits: not finite
  float sum = 0;             // norm: of squares; mean: of magnitudes
};

/// m values, at most one block of the sum.
template <bool residuals, Scale scale>
LPSGD_INLINE BucketScan scan_block(const float* values, const float* residual, std::int64_t m) {
  I top[kRow] = {};
  F sums[kRow] = {};
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      top[k % kRow] = greater(top[k % kRow], Lanes::bits(v[k]) & magnitude_mask);
      if constexpr (scale == Scale::norm) sums[k % kRow] = fused_multiply_add(v[k], v[k], sums[k % kRow]);
      if constexpr (scale == Scale::mean) sums[k % kRow] += magnitude<Lanes>(v[k]);
    }
  }
  for (int k = 1; k < kRow; ++k) top[0] = greater(top[0], top[k]);
  return {largest(top[0]), scale == Scale::norm || scale == Scale::mean ? fold(sums) : 0.0f};
}

template <bool residuals, Scale scale>
[[gnu::noinline]] BucketScan scan_bucket(const float* values, const float* residual, std::int64_t m) {
  constexpr std::int64_t block = FixedOrderSum::block;
  if (m <= block) return scan_block<residuals, scale>(values, residual, m);
  BucketScan scan;
  FixedOrderSum sums;
  for (std::int64_t at = 0; at < m; at += block) {
    const BucketScan part =
        scan_block<residuals, scale>(values + at, advanced(residual, at), m - at < block ? m - at : block);
    if (part.largest > scan.largest) scan.largest = part.largest;
    sums.add(part.sum);
  }
  scan.sum = sums.total();
  return scan;
}

using Scanner = BucketScan (*)(const float*, const float*, std::int64_t);

inline Scanner scanner(Scale scale, bool residuals) {
  switch (scale) {
    case Scale::norm:
      return residuals ? scan_bucket<true, Scale::norm> : scan_bucket<false, Scale::norm>;
    case Scale::mean:
      return residuals ? scan_bucket<true, Scale::mean> : scan_bucket<false, Scale::mean>;
    default:
      return residuals ? scan_bucket<true, Scale::largest> : scan_bucket<false, Scale::largest>;
  }
}

/// The bucket's scale; not finite where the bucket holds no numbers or its mean's sum overflows.
LPSGD_INLINE float scale_of(Scale scale, const BucketScan& scan, std::int64_t m) {
  if (scan.largest >= infinity_bits) return canonical_nan();
  const float top = ScalarLanes::value(scan.largest);
  if (scale == Scale::mean) return mean(scan.sum, m);
  if (scale != Scale::norm) return top;
  const float root = is_finite(scan.sum) ? __builtin_sqrtf(scan.sum) : 0.0f;
  return root > top ? root : top;
}

/// A rule whose codes are few enough looks their values up in a register: one lane a code.
template <class Rule>
struct Tabled : Rule {
#if defined(__AVX512F__)
  static constexpr bool tabled = Rule::bits <= 4;
#elif defined(__AVX2__)
  static constexpr bool tabled = Rule::bits <= 3;
#else
  static constexpr bool tabled = false;
#endif
  F values = {};
  Tabled() = default;
  LPSGD_INLINE explicit Tabled(const Rule& rule) : Rule(rule) {}
  LPSGD_INLINE void start(float of_bucket) {
    Rule::start(of_bucket);
    if constexpr (tabled) values = Rule::value(lane_numbers());
  }
  LPSGD_INLINE F value(I code) const {
#if defined(__AVX512F__)
    if constexpr (tabled) return _mm512_permutexvar_ps(reinterpret_cast<Native>(code), values);
#elif defined(__AVX2__)
    if constexpr (tabled) return _mm256_permutevar8x32_ps(values, reinterpret_cast<Native>(code));
#endif
    return Rule::value(code);
  }
};

/// What encoding does with the residual.
enum class Residual : std::uint8_t {
  none,
  added,   // values + residual is coded, what is left becomes the residual
  behind,  // the values are coded as they are, what is left becomes the residual
};

template <class Rule, Residual mode>
[[gnu::noinline]] void encode_codes(const Rule& rule, const float* values, float* residual, std::int64_t m,
                                    DitherStream& dither, std::byte* words) {
  constexpr bool residuals = mode != Residual::none;
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<mode == Residual::added>(values + at, advanced(residual, at), m - at, v);
    const std::uint16_t* halves = nullptr;
    if constexpr (Rule::dithered) halves = dither.block();
    I codes[kVectors];
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      I half = {};
      if constexpr (Rule::dithered) half = load_halves(halves + k * kLanes);
      codes[k] = rule.code(v[k], half);
    }
    store_codes<Rule::bits>(codes, words + at * Rule::bits / 8, m - at);
    if constexpr (residuals) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] -= rule.value(codes[k]);
      store_block<false>(residual + at, m - at, v);
    }
  }
}

template <class Rule>
bool scaled_encode(const Rule& untabled, Scale scale, const float* values, float* residual, std::int64_t n,
                   std::int64_t first, std::int64_t bucket, const CodingContext& context, std::byte* out) {
  const std::int64_t scales = scale == Scale::none ? 0 : 1;
  const Scanner scan = scanner(scale, residual != nullptr);
  const auto encode =
      residual ? encode_codes<Tabled<Rule>, Residual::added> : encode_codes<Tabled<Rule>, Residual::none>;
  Tabled<Rule> rule(untabled);
  DitherStream dither(context);
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    float* r = advanced(residual, begin);
    const float s = scale_of(scale, scan(values + begin, r, m), m);
    if (is_finite(s)) [[likely]] {
      if (scales) store(out, s);
      rule.start(s);
      if constexpr (Rule::dithered) dither.seek(first + begin);
      encode(rule, values + begin, r, m, dither, out + 4 * scales);
    } else {
      write_poisoned(out, scales, Rule::bits, r, m);
      finite = false;
    }
    out += record_bytes(m, scales, Rule::bits);
  }
  return finite;
}

template <class Rule, bool adds>
bool scaled_decode_buckets(const Rule& untabled, Scale scale, const std::byte* in, std::int64_t n,
                           std::int64_t bucket, float* out) {
  Tabled<Rule> rule(untabled);
  const std::int64_t scales = scale == Scale::none ? 0 : 1;
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    const float s = scales ? load<float>(in) : 1.0f;
    if (is_finite(s)) [[likely]] {
      rule.start(s);
      for (std::int64_t at = 0; at < m; at += kBlock) {
        I codes[kVectors];
        load_codes<Rule::bits>(in + 4 * scales + at * Rule::bits / 8, m - at, codes);
        F v[kVectors];
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = rule.value(codes[k]);
        store_block<adds>(out + begin + at, m - at, v);
      }
    } else {
      decode_poisoned(out + begin, m);
      finite = false;
    }
    in += record_bytes(m, scales, Rule::bits);
  }
  return finite;
}

template <class Rule>
bool scaled_decode(const Rule& rule, Scale scale, const std::byte* in, std::int64_t n, std::int64_t bucket,
                   bool adds, float* out) {
  return adds ? scaled_decode_buckets<Rule, true>(rule, scale, in, n, bucket, out)
              : scaled_decode_buckets<Rule, false>(rule, scale, in, n, bucket, out);
}

// ---- The owner's step: each bucket's mean is made in registers, with what its scale needs, and stays in the
// first-level cache until it is coded.

constexpr std::size_t kTogether = 8;  // contributions added in registers

/// One bucket's codes of up to kTogether contributions.
template <class Rule>
struct Contributions {
  Tabled<Rule> rules[kTogether];
  const std::byte* words[kTogether];
  std::size_t count = 0;
};

/// m values, at most one block of the sum: the codes' sum, added to what v holds where `adds`; with `last`
/// times the weight, plus the residual, and scanned.
template <class Rule, Scale scale, bool adds, bool last>
LPSGD_INLINE BucketScan mean_block(const Contributions<Rule>& in, std::int64_t from, std::int64_t m,
                                   float weight, const float* residual, float* v) {
  I top[kRow] = {};
  F sums[kRow] = {};
  for (std::int64_t at = 0; at < m; at += kBlock) {
    const std::int64_t left = m - at;
    F sum[kVectors];
    I codes[kVectors];
    const std::int64_t byte = (from + at) * Rule::bits / 8;
    if constexpr (adds) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] = load<F>(v + at + k * kLanes);
    } else {
      load_codes<Rule::bits>(in.words[0] + byte, left, codes);
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] = in.rules[0].value(codes[k]);
    }
    for (std::size_t r = adds ? 0 : 1; r < in.count; ++r) {
      load_codes<Rule::bits>(in.words[r] + byte, left, codes);
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] += in.rules[r].value(codes[k]);
    }
    if constexpr (last) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] *= weight;
      if (residual) add_block(residual + at, left, sum);
      if (left < kBlock) [[unlikely]] {
        for (int k = 0; k < kVectors; ++k)
          sum[k] = lane_numbers() + k * kLanes < static_cast<std::int32_t>(left) ? sum[k] : F{};
      }
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
        top[k % kRow] = greater(top[k % kRow], Lanes::bits(sum[k]) & magnitude_mask);
        if constexpr (scale == Scale::norm)
          sums[k % kRow] = fused_multiply_add(sum[k], sum[k], sums[k % kRow]);
        if constexpr (scale == Scale::mean) sums[k % kRow] += magnitude<Lanes>(sum[k]);
      }
    }
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) store(v + at + k * kLanes, sum[k]);
  }
  for (int k = 1; k < kRow; ++k) top[0] = greater(top[0], top[k]);
  return {largest(top[0]), scale == Scale::norm || scale == Scale::mean ? fold(sums) : 0.0f};
}

template <class Rule, Scale scale, bool adds, bool last>
[[gnu::noinline]] BucketScan mean_bucket(const Contributions<Rule>& in, std::int64_t m, float weight,
                                         const float* residual, float* v) {
  constexpr std::int64_t block = FixedOrderSum::block;
  if (m <= block) return mean_block<Rule, scale, adds, last>(in, 0, m, weight, residual, v);
  BucketScan scan;
  FixedOrderSum sums;
  for (std::int64_t at = 0; at < m; at += block) {
    const BucketScan part = mean_block<Rule, scale, adds, last>(in, at, m - at < block ? m - at : block,
                                                                weight, advanced(residual, at), v + at);
    if (part.largest > scan.largest) scan.largest = part.largest;
    sums.add(part.sum);
  }
  scan.sum = sums.total();
  return scan;
}

/// CodecKernels::reduce.
template <Scale scale, class Rule>
bool scaled_reduce(const Rule& untabled, const std::byte* const* contributions, std::size_t ranks,
                   float* residual, std::int64_t n, std::int64_t first, std::int64_t bucket,
                   const CodingContext& context, float* v, std::byte* out) {
  constexpr std::int64_t scales = scale == Scale::none ? 0 : 1;
  const float weight = 1.0f / static_cast<float>(ranks);
  const auto encode =
      residual ? encode_codes<Tabled<Rule>, Residual::behind> : encode_codes<Tabled<Rule>, Residual::none>;
  Tabled<Rule> rule(untabled);
  Contributions<Rule> in;
  for (Tabled<Rule>& one : in.rules) one = rule;
  DitherStream dither(context);
  std::int64_t offset = 0;
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    float* r = advanced(residual, begin);
    bool numbers = true;
    BucketScan scan;
    for (std::size_t done = 0; done < ranks; done += in.count) {
      in.count = ranks - done < kTogether ? ranks - done : kTogether;
      for (std::size_t k = 0; k < in.count; ++k) {
        const std::byte* record = contributions[done + k] + offset;
        const float s = scales ? load<float>(record) : 1.0f;
        numbers &= is_finite(s);
        in.rules[k].start(s);
        in.words[k] = record + 4 * scales;
      }
      const bool last = done + in.count == ranks;
      const auto mean =
          done == 0 ? (last ? mean_bucket<Rule, scale, false, true> : mean_bucket<Rule, scale, false, false>)
                    : (last ? mean_bucket<Rule, scale, true, true> : mean_bucket<Rule, scale, true, false>);
      scan = mean(in, m, weight, r, v);
    }
    const float s = numbers ? scale_of(scale, scan, m) : canonical_nan();
    if (is_finite(s)) [[likely]] {
      if (scales) store(out + offset, s);
      rule.start(s);
      if constexpr (Rule::dithered) dither.seek(first + begin);
      encode(rule, v, r, m, dither, out + offset + 4 * scales);
    } else {
      write_poisoned(out + offset, scales, Rule::bits, r, m);
      finite = false;
    }
    offset += record_bytes(m, scales, Rule::bits);
  }
  return finite;
}

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
