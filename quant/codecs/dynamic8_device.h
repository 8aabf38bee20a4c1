// 8-bit types with 128 magnitudes and a sign (Dettmers 2016, section 2): maths of the codec `dynamic8`.
#pragma once

#include "quant/codec_math_device.h"

namespace lpsgd {

struct Dynamic8Options {
  enum class Type : std::uint8_t { dynamic_tree, static_tree, linear, mantissa };
  Type type = Type::dynamic_tree;
};

/// One type unpacked: magnitudes that ascend from 0 to 1, and what finds the nearest one.
struct Dynamic8Table {
  static constexpr int codes = 128;
  static constexpr int cell_bits = 6;                   // of the mantissa that a cell shares
  static constexpr std::int32_t lowest_exponent = -28;  // below it all is code 0
  static constexpr int cells = (0 - lowest_exponent) * (1 << cell_bits) + 2;

  float magnitude[codes];
  // y lies in cell (bits of y >> (23 - cell_bits)) less that of 2^lowest_exponent plus 1; no cell holds
  // more than one boundary between codes.
  float code_below[cells];  // the code before the cell's boundary
  float boundary[cells];    // the smallest y of the cell's later code; 2 where all have one code
};

/// The table of a type, made once.
const Dynamic8Table& dynamic8_table(Dynamic8Options::Type type);

/// The code nearest to v/divisor, ties to the smaller magnitude; the sign in bit 7, none for code 0.
template <class L>
LPSGD_HD typename L::I dynamic8_code(const Dynamic8Table& table, typename L::F v, float divisor) {
  using F = typename L::F;
  using I = typename L::I;
  const F y = magnitude<L>(v) / divisor;
  const I cell = (L::bits(y) >> (23 - Dynamic8Table::cell_bits)) -
                 (((Dynamic8Table::lowest_exponent + 127) << Dynamic8Table::cell_bits) - 1);
  const I zero = I{};
  const I at = cell > 0 ? cell : zero;
  const I below = L::truncate(L::gather(table.code_below, at));
  const I code = below + (y >= L::gather(table.boundary, at) ? zero + 1 : zero);
  const I sign = (L::bits(v) >> 31) & 128;
  return code | (code == 0 ? zero : sign);
}

/// scale * magnitude, then the sign.
template <class L>
LPSGD_HD typename L::F dynamic8_value(const Dynamic8Table& table, typename L::I code, float scale) {
  const typename L::F x = scale * L::gather(table.magnitude, code & 127);
  return L::value(L::bits(x) ^ ((code & 128) << 24));
}

}  // namespace lpsgd
