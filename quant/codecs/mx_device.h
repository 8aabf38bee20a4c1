// Blocks of an OCP microscaling format (OCP Microscaling Formats (MX) Specification v1.0, sections 5 and 6),
// for host and device. A block is 32 values that share a scale X, a power of two in one byte (E8M0). A value
// is X times an element: a float of 4 or 8 bits.
#pragma once

#include "quant/scaled_rule_device.h"

namespace lpsgd {

/// An element type: a sign, exponent bits and `mantissa` bits. The exponent of its largest value is `emax`,
/// that of its smallest normal one `emin`. It has denormals.
template <MxOptions::Element type>
struct MxElement;
template <>
struct MxElement<MxOptions::Element::e2m1> {
  static constexpr int bits = 4, mantissa = 1, emin = 0, emax = 2;
  static constexpr float largest = 6;
};
template <>
struct MxElement<MxOptions::Element::e4m3> {
  static constexpr int bits = 8, mantissa = 3, emin = -6, emax = 8;
  static constexpr float largest = 448;
};
template <>
struct MxElement<MxOptions::Element::e5m2> {
  static constexpr int bits = 8, mantissa = 2, emin = -14, emax = 15;
  static constexpr float largest = 57344;
};

inline constexpr std::int64_t mx_block = 32;
inline constexpr std::int32_t mx_nan = 255;  // the scale of a block that has no values

/// Bytes of a bucket's scales: one for each block, rounded up to whole words.
LPSGD_HD std::int64_t mx_scale_bytes(std::int64_t m) {
  return (m + 4 * mx_block - 1) / (4 * mx_block) * 4;
}

/// The scales and values of an element type.
template <class L, MxOptions::Element type>
struct MxBlocks : MxElement<type> {
  using Lanes = L;
  using E = MxElement<type>;
  using F = typename L::F;
  using I = typename L::I;
  static constexpr std::int32_t largest_code = (1 << (E::bits - 1)) - 1;
  // Larger scales are never written. They decode to NaN, so that no code of any scale is infinite.
  static constexpr std::int32_t largest_scale = 253 - E::emax;

  /// The scale of a block by the bits of its largest magnitude: the smallest with which that magnitude is at
  /// most the element type's largest value (Mishra et al., "Recipes for pre-training LLMs with MXFP8", 2025).
  /// So nothing is clamped, and stochastic rounding is unbiased. mx_nan where the magnitude is not finite, or
  /// is above 2^126.
  LPSGD_HD static std::int32_t scale_of(std::int32_t largest_magnitude) {
    constexpr std::int32_t fraction = (1 << 23) - 1, one = 1 << 23;
    if (largest_magnitude > (126 + 127) * one) return mx_nan;
    const std::int32_t up =
        (largest_magnitude & fraction) > (ScalarLanes::bits(E::largest) & fraction) ? 1 : 0;
    const std::int32_t scale = largest_magnitude / one - E::emax + up;
    return scale > 0 ? scale : 0;
  }
  LPSGD_HD static bool has_values(std::int32_t scale) { return scale <= largest_scale; }
  /// X of a scale with values.
  LPSGD_HD static float multiplier(std::int32_t scale) {
    return ScalarLanes::value(scale > 0 ? scale << 23 : 1 << 22);
  }
  /// 1/X.
  LPSGD_HD static float inverse(std::int32_t scale) { return ScalarLanes::value((254 - scale) << 23); }

  /// The element of a code, whose lanes may carry other bits above their own; times X, rounded once.
  LPSGD_HD static F value(I code, float x) {
    const I c = code & largest_code;
    F element;
    if constexpr (E::bits == 8 || std::is_same_v<L, ScalarLanes>) {
      // A denormal element has the bits of a denormal float, which slows CPUs down. Few elements of 8 bits
      // are denormal.
      element = L::value(c << (23 - E::mantissa)) * ScalarLanes::value((E::emin + 253) << 23);
    } else {
      const I one = I{} + 1, field = c >> E::mantissa, exponent = (field > one ? field : one) - 1;
      const F units = L::convert(c - (exponent << E::mantissa));
      element = units * L::value((exponent + (E::emin - E::mantissa + 127)) << 23);
    }
    return L::value(L::bits(element * x) ^ ((code << (32 - E::bits)) & (I{} + ScalarLanes::bits(-0.0f))));
  }
};

/// With the rounding of values to codes.
template <class Blocks, MxOptions::Rounding rounding>
struct Mx : Blocks {
  using L = typename Blocks::Lanes;
  using E = typename Blocks::E;
  using F = typename L::F;
  using I = typename L::I;
  static constexpr bool dithered = rounding == MxOptions::Rounding::stochastic;

  /// The code of v: v/X rounded to a neighbouring element; of zero no sign. `half` is the dither's.
  LPSGD_HD static I code(F v, float inverse_of_scale, I half) {
    const F y = magnitude<L>(v) * inverse_of_scale;
    const I lowest = I{} + (E::emin + 127), of_y = L::bits(y) >> 23;
    const I exponent = of_y > lowest ? of_y : lowest;
    // In units of the last place of y's exponent, below 2^(mantissa + 1); exactly.
    const F units = y * L::value((E::mantissa + 254 - exponent) << 23);
    I whole;
    if constexpr (dithered)
      whole = L::round_by(units, L::dither(half));
    else
      whole = L::bits(units + 0x1p23f) - 0x4b000000;  // to nearest, ties to even
    return with_sign<L>(v, ((exponent - lowest) << E::mantissa) + whole, E::bits);
  }
};

/// Calls body(MxBlocks<L, ...>()) of the options.
template <class L, class Body>
auto with_mx_blocks(const MxOptions& options, Body body) {
  using enum MxOptions::Element;
  if (options.element == e4m3) return body(MxBlocks<L, e4m3>());
  if (options.element == e5m2) return body(MxBlocks<L, e5m2>());
  return body(MxBlocks<L, e2m1>());
}
/// Calls body(Mx<MxBlocks<L, ...>, ...>()) of the options.
template <class L, class Body>
auto with_mx(const MxOptions& options, Body body) {
  using enum MxOptions::Rounding;
  return with_mx_blocks<L>(options, [&](auto blocks) {
    using Blocks = decltype(blocks);
    return options.rounding == nearest ? body(Mx<Blocks, nearest>()) : body(Mx<Blocks, stochastic>());
  });
}

}  // namespace lpsgd
