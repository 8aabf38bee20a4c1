// Codecs whose records are scales and codes of a fixed width differ only in their rule, which turns values
// into codes and back. A rule is a class template over Lanes (quant/codec_math_device.h), the same for CPU
// (quant/cpu_scaled_inl.h) and GPU (quant/cuda/scaled_device.h). It derives from ScaledRule and has
//   static constexpr int bits;              of a code: 1, 2, 4, 8 or 16
//   static constexpr Scale scales[1 or 2];  what its buckets are scaled by; of two the options choose:
//   static int scale_index(Options);        0 or 1
//   Rule(Options), or Rule(Options, Constants)
//   void start(float scale);                the next codes are of a bucket of this scale; of two for `sides`
//   I code(F v, I half) const;              `half` holds the dither's 16 bits
//   F value(I code) const;                  of any code, whose lanes may carry other bits above their own
// and, if code() is with_sign() of a level,
//   static constexpr bool has_levels = true;
//   I level(F v, I half) const;             it needs no other lane of a warp
#pragma once

#include <iterator>

#include "quant/codec_list.h"
#include "quant/codec_math_device.h"

namespace lpsgd {

/// What a bucket is scaled by. A record begins with it.
enum class Scale : std::uint8_t {
  none,   // no scale
  max,    // the largest magnitude
  norm,   // the 2-norm, or the largest magnitude if that is larger or the squares overflow
  mean,   // of the magnitudes
  sides,  // two means: of the values >= 0, of the others
};

/// How many numbers of a record these are.
LPSGD_HD constexpr int scale_count(Scale scale) {
  return scale == Scale::none ? 0 : scale == Scale::sides ? 2 : 1;
}

/// What a bucket's scale is computed from.
struct BucketScan {
  std::int32_t max = 0;  // bits of the largest magnitude; >= infinity_bits: non-finite
  float sum = 0;         // Scale::norm: of squares; Scale::mean: of magnitudes
};

/// The scale of m values, except Scale::sides. Non-finite if a value is, or if the sum of a mean overflows.
LPSGD_HD float scale_of(Scale scale, BucketScan scan, std::int64_t m) {
  if (scan.max >= infinity_bits) return canonical_nan();
  const float top = ScalarLanes::value(scan.max);
  if (scale == Scale::mean) return mean(scan.sum, m);
  if (scale != Scale::norm) return top;
  const float root = is_finite(scan.sum) ? ScalarLanes::square_root(scan.sum) : 0.0f;
  return root > top ? root : top;
}

/// A code of a level of bits - 1 bits and the sign of v; level 0 has none.
template <class L>
LPSGD_HD typename L::I with_sign(typename L::F v, typename L::I level, int bits) {
  const typename L::I sign = (L::bits(v) >> 31) & (1 << (bits - 1));
  const typename L::I zero = typename L::I{};
  return level | (level == 0 ? zero : sign);
}

/// The defaults of a rule.
template <class OptionsType>
struct ScaledRule {
  using Options = OptionsType;
  using Constants = void;  // what all buckets read: `static const Constants& constants(Options)` gives it
  static constexpr bool dithered = false;  // code() reads `half`
  static constexpr bool has_levels = false;
  static constexpr bool divides = false;  // every value, which takes a GPU more registers
  static constexpr int table_bytes = 0;   // of the table before the records
};

template <class Rule>
LPSGD_HD Scale scale_by(const typename Rule::Options& options) {
  constexpr Scale first = Rule::scales[0], last = Rule::scales[std::size(Rule::scales) - 1];
  if constexpr (first == last)
    return first;
  else
    return Rule::scale_index(options) == 0 ? first : last;
}

}  // namespace lpsgd
