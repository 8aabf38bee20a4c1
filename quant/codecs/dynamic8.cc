// Dettmers' 8-bit types (Dettmers 2016, section 2): v divided by the bucket's largest magnitude, rounded to
// the nearest of 128 magnitudes, and a sign. Record: the largest magnitude, then one byte a value.
#include "quant/scaled_codec_inl.h"

namespace lpsgd {

/// One type unpacked: magnitudes in ascending order from 0 to 1, and cells to find the nearest one.
struct Dynamic8Table {
  static constexpr int codes = 128;
  static constexpr int cell_bits = 6;                   // of the mantissa that a cell shares
  static constexpr int rest_bits = 23 - cell_bits;      // of the mantissa within a cell
  static constexpr std::int32_t lowest_exponent = -28;  // below it all is code 0
  static constexpr int cells = (0 - lowest_exponent) * (1 << cell_bits) + 2;

  /// The cell of y; 0 or less for all y below the lowest exponent.
  template <class I>
  LPSGD_HD static I cell_of(I bits_of_y) {
    return (bits_of_y >> rest_bits) - (((lowest_exponent + 127) << cell_bits) - 1);
  }

  float magnitude[codes];
  // No cell holds more than one boundary between codes. 2^(rest_bits + 1) times the code before it, plus what
  // the rest of y's mantissa, from the boundary's on, carries over to the next code.
  std::int32_t cell[cells];
};

/// The table of a type, made once.
const Dynamic8Table& dynamic8_table(Dynamic8Options::Type type);

}  // namespace lpsgd

namespace lpsgd::LPSGD_ISA {
namespace {

/// v / divisor to the nearest magnitude, ties to the smaller one; the sign in bit 7, none for code 0.
template <class L>
struct Dynamic8 : ScaledRule<Dynamic8Options> {
  using F = typename L::F;
  using I = typename L::I;
  using Constants = Dynamic8Table;
  static constexpr int bits = 8;
  static constexpr bool has_levels = true;
  static constexpr Scale scales[1] = {Scale::max};
  static const Dynamic8Table& constants(const Dynamic8Options& options) {
    return dynamic8_table(options.type);
  }

  const Dynamic8Table* table = nullptr;
  float scale = 0;
  Divider<L> by_scale;
  LPSGD_HD Dynamic8(const Dynamic8Options&, const Dynamic8Table& of_type) : table(&of_type) {}
  LPSGD_HD void start(float s) {
    scale = s;
    by_scale = Divider<L>(s > 0 ? s : 1.0f);
  }
  LPSGD_HD I code(F v, I half) const { return with_sign<L>(v, level(v, half), bits); }
  LPSGD_HD I level(F v, I) const {
    const I y = L::bits(by_scale(magnitude<L>(v)));
    const I cell = Dynamic8Table::cell_of(y), zero = I{};
    const I found = L::gather(table->cell, cell > 0 ? cell : zero);
    return (found + (y & ((1 << Dynamic8Table::rest_bits) - 1))) >> (Dynamic8Table::rest_bits + 1);
  }
  LPSGD_HD F value(I code) const {
    const F x = scale * L::gather(table->magnitude, code & 127);
    return L::value(L::bits(x) ^ ((code & 128) << 24));
  }
  /// The 128 values of the codes without a sign, before the scale multiplies them.
  const float* magnitudes() const { return table->magnitude; }
};

}  // namespace

CodecKernels dynamic8_kernels() {
  return scaled_kernels<Dynamic8>();
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace lpsgd {

namespace {

using Type = Dynamic8Options::Type;

/// The 128 magnitudes of a type (docs/numerics.md), computed in double.
std::array<double, Dynamic8Table::codes> magnitudes(Type type) {
  std::array<double, Dynamic8Table::codes> out{};
  constexpr double decade[] = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  std::size_t c = 1;
  switch (type) {
    case Type::dynamic_tree:
      for (int i = 0; i <= 5; ++i)
        for (const auto& [low, high] : {std::pair{0.1, 0.45}, std::pair{0.45, 1.0}})
          for (int j = 0, cells = 1 << i; j < cells; ++j)
            out[c++] = decade[i + 2] * (low + (high - low) * (2 * j + 1) / (2 * cells));
      break;
    case Type::static_tree:
      for (; c < 127; ++c) out[c] = decade[c / 16] * (0.1 + 0.9 * (2 * static_cast<double>(c % 16) + 1) / 32);
      break;
    case Type::linear:
      for (; c < 127; ++c) out[c] = static_cast<double>(c) / 127;
      break;
    case Type::mantissa:
      for (; c < 127; ++c)
        out[c] = (c < 16 ? static_cast<double>(c)
                         : std::ldexp(16 + static_cast<double>(c % 16), static_cast<int>(c / 16) - 1)) /
                 1984;
      break;
  }
  out[127] = 1;
  return out;
}

Dynamic8Table make_table(Type type) {
  Dynamic8Table table{};
  const auto exact = magnitudes(type);
  for (std::size_t c = 0; c < exact.size(); ++c) table.magnitude[c] = static_cast<float>(exact[c]);
  constexpr int rest = Dynamic8Table::rest_bits;
  const auto entry = [](int code, std::int32_t boundary) { return ((code + 1) << (rest + 1)) - boundary; };
  int next = 0;  // the first cell whose entry is not yet known
  for (int c = 0; c + 1 < Dynamic8Table::codes; ++c) {
    // Exactly half-way, where y still has the smaller code.
    const double half =
        (static_cast<double>(table.magnitude[c]) + static_cast<double>(table.magnitude[c + 1])) / 2;
    auto y = static_cast<float>(half);
    if (static_cast<double>(y) <= half) y = std::nextafter(y, 2.0f);
    const std::int32_t bits = ScalarLanes::bits(y), cell = std::max(Dynamic8Table::cell_of(bits), 0);
    require(next <= cell, "an 8-bit type has two boundaries in a cell");
    for (; next < cell; ++next) table.cell[next] = entry(c, 1 << rest);
    table.cell[next++] = entry(c, bits & ((1 << rest) - 1));
  }
  for (; next < Dynamic8Table::cells; ++next) table.cell[next] = entry(Dynamic8Table::codes - 1, 1 << rest);
  return table;
}

}  // namespace

const Dynamic8Table& dynamic8_table(Type type) {
  static const Dynamic8Table tables[] = {make_table(Type::dynamic_tree), make_table(Type::static_tree),
                                         make_table(Type::linear), make_table(Type::mantissa)};
  return tables[static_cast<std::size_t>(type)];
}

CodecRow dynamic8_row() {
  CodecRow row;
  row.bucket = 4096;
  row.options = [](config::Visitor& v, CodecOptions& options) {
    v.choice("type", std::get<Dynamic8Options>(options).type,
             {{"dynamic_tree", Type::dynamic_tree},
              {"static_tree", Type::static_tree},
              {"linear", Type::linear},
              {"mantissa", Type::mantissa}},
             "how the 128 magnitudes are spread: docs/numerics.md");
  };
  row.record_bytes = [](const CodecOptions&, std::int64_t m) { return record_bytes(m, 1, 8); };
  return row;
}

}  // namespace lpsgd
#endif
