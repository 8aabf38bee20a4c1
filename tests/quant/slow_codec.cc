#include "tests/quant/slow_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/philox.h"

namespace lpsgd::slow {
namespace {

using Values = std::vector<float>;
using Levels = QsgdOptions::Levels;
const float nan_value = std::bit_cast<float>(0x7fc00000u);

float canonical_nan_or(float x) {
  return std::isnan(x) ? nan_value : x;
}

/// Blocks of 4096, 32 partial sums in each, folded by halves; then the sums of blocks likewise.
float fixed_sum(const Values& values, bool squares) {
  Values sums;
  for (std::size_t begin = 0; begin < values.size(); begin += 4096) {
    float partial[32] = {};
    for (std::size_t i = begin; i < std::min(values.size(), begin + 4096); ++i) {
      float& p = partial[(i - begin) % 32];
      p = squares ? std::fma(values[i], values[i], p) : p + values[i];
    }
    for (int h = 16; h >= 1; h /= 2)
      for (int j = 0; j < h; ++j) partial[j] += partial[j + h];
    sums.push_back(partial[0]);
  }
  if (sums.empty()) return 0;
  return sums.size() == 1 ? sums[0] : fixed_sum(sums, false);
}

bool all_finite(const Values& v) {
  return std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); });
}

float norm_of(const Values& v, bool l2) {
  float largest = 0;
  for (const float x : v) largest = std::max(largest, std::fabs(x));
  if (!l2) return largest;
  const float squares = fixed_sum(v, true);
  return std::isfinite(squares) ? std::max(largest, std::sqrt(squares)) : largest;
}

float dither(std::int64_t element, const CodingContext& c, std::uint32_t tensor) {
  const Philox4x32 block = philox4x32(static_cast<std::uint32_t>(element / 8), tensor, c.step,
                                      2 * c.rank + c.round - 1, c.seed, 1);
  std::uint32_t d = block.x[element % 8 / 2];
  d = element % 2 ? d >> 16 : d & 0xffff;
  return static_cast<float>(2 * d + 1) / 131072.0f;
}

template <class T>
void append(std::vector<std::byte>& bytes, T x) {
  std::byte raw[sizeof x];
  std::memcpy(raw, &x, sizeof x);
  bytes.insert(bytes.end(), raw, raw + sizeof x);
}

/// Codes from the lowest bit of 32-bit words up.
void append_codes(std::vector<std::byte>& bytes, const std::vector<std::uint32_t>& codes, int bits) {
  std::vector<std::uint32_t> words((codes.size() * static_cast<std::size_t>(bits) + 31) / 32);
  for (std::size_t i = 0; i < codes.size(); ++i)
    for (int b = 0; b < bits; ++b) {
      const std::size_t at = i * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
      words[at / 32] |= (codes[i] >> b & 1u) << (at % 32);
    }
  for (const std::uint32_t w : words) append(bytes, w);
}

struct Bucket {
  std::vector<std::byte> bytes;
  Values decoded;
};

Bucket non_finite(std::size_t m, int scales, int bits) {
  Bucket out;
  for (int i = 0; i < scales; ++i) append(out.bytes, nan_value);
  append_codes(out.bytes, std::vector<std::uint32_t>(m), bits);
  out.decoded.assign(m, nan_value);
  return out;
}

Bucket onebit(const Values& v) {
  Values positive(v.size()), negative(v.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    (v[i] >= 0 ? positive : negative)[i] = v[i];
    count += v[i] >= 0;
  }
  const float sums[2] = {fixed_sum(positive, false), fixed_sum(negative, false)};
  if (!all_finite(v) || !std::isfinite(sums[0]) || !std::isfinite(sums[1])) return non_finite(v.size(), 2, 1);
  const float up = count > 0 ? sums[0] / static_cast<float>(count) : 0;
  const float down = count < v.size() ? sums[1] / static_cast<float>(v.size() - count) : 0;
  Bucket out;
  append(out.bytes, up);
  append(out.bytes, down);
  std::vector<std::uint32_t> codes;
  for (const float x : v) {
    codes.push_back(x >= 0);
    out.decoded.push_back(x >= 0 ? up : down);
  }
  append_codes(out.bytes, codes, 1);
  return out;
}

Bucket sign(const Values& v, bool majority) {
  Values magnitudes(v);
  for (float& x : magnitudes) x = std::fabs(x);
  const float sum = fixed_sum(magnitudes, false);
  if (!all_finite(v) || (!majority && !std::isfinite(sum))) {
    Bucket out = non_finite(v.size(), majority ? 0 : 1, 1);
    if (majority) out.decoded.assign(v.size(), -1.0f);
    return out;
  }
  const float scale = majority ? 1.0f : sum / static_cast<float>(v.size());
  Bucket out;
  if (!majority) append(out.bytes, scale);
  std::vector<std::uint32_t> codes;
  for (const float x : v) {
    codes.push_back(x >= 0);
    out.decoded.push_back(x >= 0 ? scale : -scale);
  }
  append_codes(out.bytes, codes, 1);
  return out;
}

Bucket qsgd(const Values& v, const QsgdOptions& o, const std::vector<int>& table,
            const CodingContext& context, std::uint32_t tensor, std::int64_t first) {
  if (!all_finite(v)) return non_finite(v.size(), 1, o.bits);
  const float norm = norm_of(v, o.norm == QsgdOptions::Norm::l2);
  const int s = (1 << (o.bits - 1)) - 1;
  Values levels;  // of magnitudes
  for (int j = 0; j <= s; ++j)
    levels.push_back(o.levels == Levels::optimal
                         ? static_cast<float>(table[static_cast<std::size_t>(j)]) / 256.0f
                     : j == 0 ? 0.0f
                              : std::ldexp(1.0f, j - s));
  Bucket out;
  append(out.bytes, norm);
  std::vector<std::uint32_t> codes;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const float d = dither(first + static_cast<std::int64_t>(i), context, tensor);
    if (norm == 0) {
      codes.push_back(0);
      out.decoded.push_back(0);
    } else if (o.levels == Levels::interval) {
      const auto top = static_cast<float>((1 << o.bits) - 1);
      const float a = ((v[i] / norm) * top + top) / 2.0f;
      float code = std::floor(a);
      if (d < a - code) code += 1;
      codes.push_back(static_cast<std::uint32_t>(code));
      out.decoded.push_back(norm * ((2 * code - top) / top));
    } else {
      const float y = std::fabs(v[i]) / norm;
      float level = 0, fraction = 0;
      if (o.levels == Levels::sign_magnitude) {
        const float a = y * static_cast<float>(s);
        level = std::floor(a);
        if (d < a - level) level += 1;
        fraction = level / static_cast<float>(s);
      } else {
        auto j =
            static_cast<std::size_t>(std::upper_bound(levels.begin(), levels.end(), y) - levels.begin() - 1);
        if (j + 1 < levels.size() && d < (y - levels[j]) / (levels[j + 1] - levels[j])) ++j;
        level = static_cast<float>(j);
        fraction = levels[j];
      }
      const bool negative = level > 0 && std::signbit(v[i]);
      codes.push_back(static_cast<std::uint32_t>(level) | (negative ? 1u << (o.bits - 1) : 0u));
      out.decoded.push_back(negative ? -(norm * fraction) : norm * fraction);
    }
  }
  append_codes(out.bytes, codes, o.bits);
  return out;
}

Bucket topk(const Values& v, double density) {
  const auto kept =
      static_cast<std::size_t>(std::max(1.0, std::floor(density * static_cast<double>(v.size()) + 0.5)));
  std::vector<std::uint32_t> positions(v.size());
  std::iota(positions.begin(), positions.end(), 0u);
  const auto size = [&](std::uint32_t i) {
    return std::isnan(v[i]) ? 2.0 * std::numeric_limits<float>::max()
                            : std::min<double>(std::fabs(v[i]), 1.5 * std::numeric_limits<float>::max());
  };
  std::stable_sort(positions.begin(), positions.end(), [&](auto a, auto b) { return size(a) > size(b); });
  positions.resize(kept);
  std::sort(positions.begin(), positions.end());
  Bucket out;
  out.decoded.assign(v.size(), 0.0f);
  for (const std::uint32_t i : positions) append(out.bytes, i);
  for (const std::uint32_t i : positions) {
    append(out.bytes, canonical_nan_or(v[i]));
    out.decoded[i] = canonical_nan_or(v[i] + 0.0f);
  }
  return out;
}

/// The 128 magnitudes in ascending order.
Values magnitudes_of(Dynamic8Options::Type type) {
  using Type = Dynamic8Options::Type;
  Values out{0.0f};
  if (type == Type::dynamic_tree) {
    for (int i = 0; i < 6; ++i)
      for (int j = 0; j < 2 << i; ++j) {
        const bool upper = j >= 1 << i;
        const double low = upper ? 0.45 : 0.1, width = (upper ? 0.55 : 0.35) / (1 << i);
        out.push_back(
            static_cast<float>(std::pow(10.0, i - 5) * (low + width * ((upper ? j - (1 << i) : j) + 0.5))));
      }
    out.push_back(1.0f);
    return out;
  }
  for (int c = 1; c < 127; ++c) {
    const int high = c / 16, low = c % 16;
    out.push_back(static_cast<float>(type == Type::linear ? c / 127.0
                                     : type == Type::static_tree
                                         ? std::pow(10.0, high - 7) * (0.1 + 0.9 * (low + 0.5) / 16)
                                         : (high == 0 ? low : (16 + low) * std::exp2(high - 1)) / 1984));
  }
  out.push_back(1.0f);
  return out;
}

Bucket dynamic8(const Values& v, const Values& grid) {
  if (!all_finite(v)) return non_finite(v.size(), 1, 8);
  const float scale = norm_of(v, false);
  Bucket out;
  append(out.bytes, scale);
  std::vector<std::uint32_t> codes;
  for (const float x : v) {
    const double y = scale > 0 ? static_cast<double>(std::fabs(x) / scale) : 0.0;
    std::uint32_t code = 0;  // one by one would be too slow for millions of values
    const auto above = static_cast<std::size_t>(
        std::lower_bound(grid.begin(), grid.end(), y, [](float g, double value) { return g < value; }) -
        grid.begin());
    code = static_cast<std::uint32_t>(above);
    if (above > 0 && y - static_cast<double>(grid[above - 1]) <= static_cast<double>(grid[above]) - y) --code;
    const bool negative = code > 0 && std::signbit(x);
    const float q = scale * grid[code];
    codes.push_back(code | (negative ? 128u : 0u));
    out.decoded.push_back(negative ? -q : q);
  }
  append_codes(out.bytes, codes, 8);
  return out;
}

Bucket mx(const Values& v, const MxOptions& o, const std::vector<double>& grid, const CodingContext& context,
          std::uint32_t tensor, std::int64_t first) {
  const bool is_e2m1 = o.element == MxOptions::Element::e2m1;
  Bucket out;
  std::vector<std::uint32_t> codes;
  for (std::size_t begin = 0; begin < v.size(); begin += 32) {
    const Values block(v.begin() + static_cast<std::ptrdiff_t>(begin),
                       v.begin() + static_cast<std::ptrdiff_t>(std::min(v.size(), begin + 32)));
    const double top = static_cast<double>(norm_of(block, false));
    if (!all_finite(block) || top > 0x1p126) {
      out.bytes.push_back(std::byte{255});
      codes.insert(codes.end(), block.size(), 0u);
      out.decoded.insert(out.decoded.end(), block.size(), nan_value);
      continue;
    }
    int exponent = -127;
    while (top > std::ldexp(grid.back(), exponent)) ++exponent;
    out.bytes.push_back(static_cast<std::byte>(exponent + 127));
    for (std::size_t i = 0; i < block.size(); ++i) {
      const double y = std::ldexp(std::fabs(static_cast<double>(block[i])), -exponent);
      auto code =
          static_cast<std::uint32_t>(std::upper_bound(grid.begin(), grid.end(), y) - grid.begin() - 1);
      if (grid[code] < y) {
        const double part = (y - grid[code]) / (grid[code + 1] - grid[code]);
        const float d = dither(first + static_cast<std::int64_t>(begin + i), context, tensor);
        const bool up = o.rounding == MxOptions::Rounding::stochastic
                            ? static_cast<double>(d) < part
                            : part > 0.5 || (part == 0.5 && code % 2 == 1);
        code += up;
      }
      const bool negative = code > 0 && std::signbit(block[i]);
      const auto q = static_cast<float>(std::ldexp(grid[code], exponent));
      codes.push_back(code | (negative ? is_e2m1 ? 8u : 128u : 0u));
      out.decoded.push_back(negative ? -q : q);
    }
  }
  while (out.bytes.size() % 4 != 0) out.bytes.push_back(std::byte{0});
  append_codes(out.bytes, codes, is_e2m1 ? 4 : 8);
  return out;
}

/// The bits of x cut to fewer exponent and mantissa bits, rounded to nearest even, in exact double
/// arithmetic.
std::uint16_t to_half(float x, int exponent_bits, int mantissa_bits) {
  const std::uint16_t sign_bit = std::signbit(x) ? 0x8000u : 0u;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(x)) return static_cast<std::uint16_t>(infinity | (1u << (mantissa_bits - 1)));
  if (std::isinf(x)) return sign_bit | infinity;
  const double y = std::fabs(static_cast<double>(x));
  if (y == 0) return sign_bit;
  const int exponent = std::max(std::ilogb(y), 1 - bias);
  const double units = std::nearbyint(std::ldexp(y, mantissa_bits - exponent));  // of the last position
  // 2^mantissa_bits units are the implicit bit: they carry into the exponent by themselves.
  const double bits = units + std::ldexp(exponent + bias - 1, mantissa_bits);
  return sign_bit | static_cast<std::uint16_t>(std::min<double>(bits, infinity));
}

float from_half(std::uint16_t h, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (h & 0x7fff) >> mantissa_bits, mantissa = h & ((1 << mantissa_bits) - 1);
  float x = 0;
  if (exponent == (1 << exponent_bits) - 1)
    x = mantissa ? nan_value : std::numeric_limits<float>::infinity();
  else
    x = static_cast<float>(std::ldexp(exponent ? mantissa + (1 << mantissa_bits) : mantissa,
                                      std::max(exponent, 1) - bias - mantissa_bits));
  return std::isnan(x) ? nan_value : (h & 0x8000) ? -x : x;
}

Bucket floats(const std::string_view kind, const Values& v) {
  Bucket out;
  for (const float x : v) {
    if (kind == "none") {
      append(out.bytes, canonical_nan_or(x));
      out.decoded.push_back(canonical_nan_or(x));
      continue;
    }
    const int exponent_bits = kind == "fp16" ? 5 : 8;
    const std::uint16_t h = to_half(x, exponent_bits, 15 - exponent_bits);
    append(out.bytes, h);
    out.decoded.push_back(from_half(h, exponent_bits, 15 - exponent_bits));
  }
  return out;
}

}  // namespace

std::vector<double> mx_magnitudes(MxOptions::Element element) {
  const bool is_e2m1 = element == MxOptions::Element::e2m1, is_e4m3 = element == MxOptions::Element::e4m3;
  const int exponent_bits = is_e2m1 ? 2 : is_e4m3 ? 4 : 5, mantissa_bits = is_e2m1 ? 1 : is_e4m3 ? 3 : 2;
  const double largest = is_e2m1 ? 6 : is_e4m3 ? 448 : 57344;
  const int units = 1 << mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  std::vector<double> out;
  for (int code = 0; out.empty() || out.back() < largest; ++code) {
    const int exponent = code / units, fraction = code % units;
    out.push_back(
        std::ldexp(exponent > 0 ? units + fraction : fraction, std::max(exponent, 1) - bias - mantissa_bits));
  }
  return out;
}

std::vector<int> optimal_levels(const CodecSpec& spec, const Values& values, std::int64_t bucket) {
  const auto o = options_of<QsgdOptions>(spec.options);
  std::vector<std::int64_t> counts(256);
  for (std::size_t begin = 0; begin < values.size(); begin += static_cast<std::size_t>(bucket)) {
    const std::size_t end = std::min(values.size(), begin + static_cast<std::size_t>(bucket));
    const Values v(values.begin() + static_cast<std::ptrdiff_t>(begin),
                   values.begin() + static_cast<std::ptrdiff_t>(end));
    const float norm = norm_of(v, o.norm == QsgdOptions::Norm::l2);
    if (!all_finite(v) || norm == 0) continue;
    for (const float x : v)
      ++counts[static_cast<std::size_t>(std::min(255.0f, std::floor(std::fabs(x) / norm * 256.0f)))];
  }
  std::vector<std::vector<std::int64_t>> cost(257, std::vector<std::int64_t>(257));
  for (int a = 0; a <= 256; ++a)
    for (int b = a + 1; b <= 256; ++b)
      for (int c = a; c < b; ++c)
        cost[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] +=
            counts[static_cast<std::size_t>(c)] * (2 * c + 1 - 2 * a) * (2 * b - 2 * c - 1);
  constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max() / 2;
  std::vector<std::int64_t> best(257, never);
  best[0] = 0;
  std::vector<std::vector<int>> from;
  for (int k = 0; k < (1 << (o.bits - 1)) - 1; ++k) {
    std::vector<std::int64_t> next(257, never);
    from.emplace_back(257, 0);
    for (std::size_t b = 1; b <= 256; ++b)
      for (std::size_t a = 0; a < b; ++a)
        if (best[a] < never && best[a] + cost[a][b] < next[b]) {  // of equal sums the smaller a
          next[b] = best[a] + cost[a][b];
          from.back()[b] = static_cast<int>(a);
        }
    best = next;
  }
  std::vector<int> levels{256};
  for (auto row = from.rbegin(); row != from.rend(); ++row)
    levels.push_back((*row)[static_cast<std::size_t>(levels.back())]);
  std::reverse(levels.begin(), levels.end());
  return levels;
}

Coded encode(const CodecSpec& spec, const Values& values, const Values& residual, std::int64_t bucket,
             const CodingContext& context, std::uint32_t tensor) {
  Values v(values);
  for (std::size_t i = 0; i < residual.size(); ++i) v[i] += residual[i];
  Coded out;
  std::vector<int> table;
  if (spec.kind == "qsgd" && options_of<QsgdOptions>(spec.options).levels == Levels::optimal && !v.empty()) {
    table = optimal_levels(spec, v, bucket);
    for (const int level : table) out.bytes.push_back(static_cast<std::byte>(std::min(level, 255)));
  }
  const Values grid =
      spec.kind == "dynamic8" ? magnitudes_of(options_of<Dynamic8Options>(spec.options).type) : Values();
  const MxOptions mx_options = spec.kind == "mx" ? options_of<MxOptions>(spec.options) : MxOptions();
  const std::vector<double> mx_grid = mx_magnitudes(mx_options.element);
  for (std::size_t begin = 0; begin < v.size(); begin += static_cast<std::size_t>(bucket)) {
    const std::size_t end = std::min(v.size(), begin + static_cast<std::size_t>(bucket));
    const Values part(v.begin() + static_cast<std::ptrdiff_t>(begin),
                      v.begin() + static_cast<std::ptrdiff_t>(end));
    const auto at = static_cast<std::int64_t>(begin);
    const Bucket coded = spec.kind == "onebit" ? onebit(part)
                         : spec.kind == "sign" ? sign(part, options_of<SignOptions>(spec.options).majority)
                         : spec.kind == "topk" ? topk(part, options_of<TopkOptions>(spec.options).density)
                         : spec.kind == "dynamic8" ? dynamic8(part, grid)
                         : spec.kind == "mx"       ? mx(part, mx_options, mx_grid, context, tensor, at)
                         : spec.kind == "qsgd"
                             ? qsgd(part, options_of<QsgdOptions>(spec.options), table, context, tensor, at)
                             : floats(spec.kind, part);
    out.bytes.insert(out.bytes.end(), coded.bytes.begin(), coded.bytes.end());
    out.decoded.insert(out.decoded.end(), coded.decoded.begin(), coded.decoded.end());
    const bool scaled = spec.kind == "onebit" || spec.kind == "sign" || spec.kind == "qsgd" ||
                        spec.kind == "dynamic8" || spec.kind == "mx";
    out.finite &= all_finite(part) && (!scaled || all_finite(coded.decoded));
  }
  for (std::size_t i = 0; i < v.size(); ++i)
    out.residual.push_back(std::isnan(out.decoded[i]) ? nan_value : canonical_nan_or(v[i] - out.decoded[i]));
  return out;
}

}  // namespace lpsgd::slow
