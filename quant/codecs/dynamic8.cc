// Dettmers' 8-bit types (Dettmers 2016, section 2): v divided by the bucket's largest magnitude, rounded to
// the nearest of 128 magnitudes, and a sign. Record: the largest magnitude, then one byte a value.
#include "quant/codecs/dynamic8_device.h"
#include "quant/cpu_scaled_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

struct Dynamic8 {
  static constexpr int bits = 8;
  static constexpr bool dithered = false;
  const Dynamic8Table* table = nullptr;
  float scale = 0, divisor = 1;
  LPSGD_INLINE void start(float s) {
    scale = s;
    divisor = s > 0 ? s : 1.0f;
  }
  LPSGD_INLINE I code(F v, I) const { return dynamic8_code<Lanes>(*table, v, divisor); }
  LPSGD_INLINE F value(I code) const { return dynamic8_value<Lanes>(*table, code, scale); }
};

bool encode(const CodecSpec& spec, const std::byte*, const float* values, float* residual, std::int64_t n,
            std::int64_t first, std::int64_t bucket, const CodingContext& context, std::byte* out) {
  const Dynamic8 rule{&dynamic8_table(spec.options.get<Dynamic8Options>().type)};
  return scaled_encode(rule, Scale::largest, values, residual, n, first, bucket, context, out);
}

bool decode(const CodecSpec& spec, const std::byte*, const std::byte* in, std::int64_t n, std::int64_t bucket,
            bool adds, float* out) {
  const Dynamic8 rule{&dynamic8_table(spec.options.get<Dynamic8Options>().type)};
  return scaled_decode(rule, Scale::largest, in, n, bucket, adds, out);
}

bool reduce(const CodecSpec& spec, const std::byte* const* contributions, std::size_t ranks, float* residual,
            std::int64_t n, std::int64_t first, std::int64_t bucket, const CodingContext& context,
            float* scratch, std::byte* out) {
  const Dynamic8 rule{&dynamic8_table(spec.options.get<Dynamic8Options>().type)};
  return scaled_reduce<Scale::largest>(rule, contributions, ranks, residual, n, first, bucket, context,
                                       scratch, out);
}

}  // namespace

CodecKernels dynamic8_kernels() {
  return {.encode = encode, .decode = decode, .reduce = reduce};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
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
  Dynamic8Table table;
  const auto exact = magnitudes(type);
  for (std::size_t c = 0; c < exact.size(); ++c) table.magnitude[c] = static_cast<float>(exact[c]);
  for (int cell = 0; cell < Dynamic8Table::cells; ++cell) {
    table.code_below[cell] = -1;
    table.boundary[cell] = 2;
  }
  const auto cell_of = [](float y) {
    const int cell = (ScalarLanes::bits(y) >> (23 - Dynamic8Table::cell_bits)) -
                     (((Dynamic8Table::lowest_exponent + 127) << Dynamic8Table::cell_bits) - 1);
    return cell > 0 ? cell : 0;
  };
  int next = 0;  // the first cell whose code_below is not yet known
  for (int c = 0; c + 1 < Dynamic8Table::codes; ++c) {
    // Half-way, exactly; y there still has the smaller code.
    const double half =
        (static_cast<double>(table.magnitude[c]) + static_cast<double>(table.magnitude[c + 1])) / 2;
    auto y = static_cast<float>(half);
    if (static_cast<double>(y) <= half) y = std::nextafter(y, 2.0f);
    const int cell = cell_of(y);
    for (; next <= cell; ++next) table.code_below[next] = static_cast<float>(c);
    require(table.boundary[cell] == 2, "an 8-bit type has two boundaries in a cell");
    table.boundary[cell] = y;
  }
  for (; next < Dynamic8Table::cells; ++next) table.code_below[next] = Dynamic8Table::codes - 1;
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
  row.defaults = CodecOptions::of(Dynamic8Options{});
  row.options = [](config::Visitor& v, CodecSpec& spec) {
    auto o = spec.options.get<Dynamic8Options>();
    v.choice("type", o.type,
             {{"dynamic_tree", Type::dynamic_tree},
              {"static_tree", Type::static_tree},
              {"linear", Type::linear},
              {"mantissa", Type::mantissa}},
             "how the 128 magnitudes are spread: docs/numerics.md");
    spec.options.set(o);
  };
  row.record_bytes = [](const CodecSpec&, std::int64_t m) { return record_bytes(m, 1, 8); };
  return row;
}

}  // namespace lpsgd
#endif
