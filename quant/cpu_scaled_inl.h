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

template <class Rule, bool residuals>
[[gnu::noinline]] void encode_codes(const Rule& rule, const float* values, float* residual, std::int64_t m,
                                    DitherStream& dither, std::byte* words) {
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
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
bool scaled_encode(Rule rule, Scale scale, const float* values, float* residual, std::int64_t n,
                   std::int64_t first, std::int64_t bucket, const CodingContext& context, std::byte* out) {
  const std::int64_t scales = scale == Scale::none ? 0 : 1;
  const Scanner scan = scanner(scale, residual != nullptr);
  const auto encode = residual ? encode_codes<Rule, true> : encode_codes<Rule, false>;
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
bool scaled_decode_buckets(Rule rule, Scale scale, const std::byte* in, std::int64_t n, std::int64_t bucket,
                           float* out) {
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
bool scaled_decode(Rule rule, Scale scale, const std::byte* in, std::int64_t n, std::int64_t bucket,
                   bool adds, float* out) {
  return adds ? scaled_decode_buckets<Rule, true>(rule, scale, in, n, bucket, out)
              : scaled_decode_buckets<Rule, false>(rule, scale, in, n, bucket, out);
}

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
