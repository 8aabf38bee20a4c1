// QSGD (Alistarh et al. 2017, section 3; EDBT 2018, section 2.3): v/norm is rounded at random to one of its
// two neighbouring levels, without bias. The four sets of levels: docs/numerics.md.
#pragma once

#include "quant/scaled_rule_device.h"

namespace lpsgd {

/// s = 2^(bits-1) - 1 levels above zero.
LPSGD_HD constexpr std::int32_t qsgd_levels(int bits) {
  return (1 << (bits - 1)) - 1;
}

/// The divisor of a bucket's values. If the norm is 0 so are all values, and dividing by 1 keeps them 0.
LPSGD_HD float qsgd_divisor(float norm) {
  return norm > 0 ? norm : 1.0f;
}

/// norm * fraction, then the sign of the code.
template <class L>
LPSGD_HD typename L::F qsgd_scaled(typename L::F fraction, typename L::I code, float norm, int bits) {
  const typename L::I sign = (code << (32 - bits)) & ~magnitude_mask;
  return L::value(L::bits(norm * fraction) ^ sign);
}

// ---- sign_magnitude: levels 0, 1/s, ..., 1 and a sign

template <class L>
LPSGD_HD typename L::I qsgd_level(typename L::F v, const Divider<L>& by_norm, typename L::I half, int bits) {
  const typename L::F a = by_norm(magnitude<L>(v)) * static_cast<float>(qsgd_levels(bits));
  return L::round_by(a, L::dither(half));
}

template <class L, int bits>
LPSGD_HD typename L::F qsgd_value(typename L::I code, float norm) {
  constexpr std::int32_t s = qsgd_levels(bits);
  return qsgd_scaled<L>(quotient_of_integers<L, s>(L::convert(code & s)), code, norm, bits);
}

// ---- interval: 2^bits levels at equal distances from -1 to 1. A bucket of norm 0 has codes 0 and decodes to
// 0.

template <class L>
LPSGD_HD typename L::I interval_code(typename L::F v, const Divider<L>& by_norm, float norm,
                                     typename L::I half, int bits) {
  const auto top = static_cast<float>((1 << bits) - 1);
  const typename L::F a = (by_norm(v) * top + top) * 0.5f;
  const typename L::I code = L::round_by(a, L::dither(half));
  return norm > 0 ? code : typename L::I{};
}

template <class L, int bits>
LPSGD_HD typename L::F interval_value(typename L::I code, float norm) {
  constexpr std::int32_t top = (1 << bits) - 1;
  const typename L::I distance = 2 * (code & top) - top;  // of an odd number of steps from 0
  const typename L::I sign = distance & ~magnitude_mask;
  const typename L::I size = distance < 0 ? -distance : distance;
  const typename L::F fraction = quotient_of_integers<L, top>(L::convert(size));
  const typename L::F x = norm * L::value(L::bits(fraction) ^ sign);
  return norm == 0 ? typename L::F{} : x;
}

// ---- exponential (its smallest levels tell apart quotients that Divider does not): levels 0, 2^-(s-1), ...,
// 1/2, 1 and a sign

template <class L>
LPSGD_HD typename L::I exponential_level(typename L::F v, float divisor, typename L::I half, int bits) {
  using F = typename L::F;
  using I = typename L::I;
  const std::int32_t s = qsgd_levels(bits);
  const F y = magnitude<L>(v) / divisor;
  const I zero = I{};
  const I exponent = (L::bits(y) >> 23) - (127 - s);  // the level below y, if that is not 0
  const I low = exponent > 0 ? exponent : zero;
  const F lowest = y * L::value(I{} + ((127 + s - 1) << 23));               // of [0, 2^-(s-1)]
  const F between = L::value((L::bits(y) & 0x7fffff) | 0x3f800000) - 1.0f;  // (y - lo)/(hi - lo), exactly
  return low + dithers_up<L>(half, low == 0 ? lowest : between);
}

template <class L>
LPSGD_HD typename L::F exponential_value(typename L::I code, float norm, int bits) {
  const std::int32_t s = qsgd_levels(bits);
  const typename L::I level = code & s;
  const typename L::F power = L::value((level + (127 - s)) << 23);
  return qsgd_scaled<L>(level == 0 ? typename L::F{} : power, code, norm, bits);
}

// ---- optimal: levels from {0, 1/256, ..., 1}, in a table (ZipML, Zhang et al. 2017, section 3)

/// A table of levels unpacked: byte j is 256 times level j, but for the last, which is 1.
struct LevelTable {
  static constexpr int cells = 256;
  float level[128];
  float low[cells], lower[cells], width[cells];  // of y's cell: the index and value of the level below, the
                                                 // distance to the next
  LPSGD_HD void read(const std::byte* table, int bits) {
    const std::int32_t s = qsgd_levels(bits);
    for (std::int32_t j = 0; j <= s; ++j)
      level[j] = j == s ? 1.0f : static_cast<float>(static_cast<std::uint8_t>(table[j])) * 0x1p-8f;
  }
  /// For encoding: after read() of levels that increase from 0 to 1.
  LPSGD_HD void fill(int bits) {
    std::int32_t j = 0;
    for (int cell = 0; cell < cells; ++cell) {
      while (j + 1 < qsgd_levels(bits) && level[j + 1] <= static_cast<float>(cell) * 0x1p-8f) ++j;
      low[cell] = static_cast<float>(j);
      lower[cell] = level[j];
      width[cell] = level[j + 1] - level[j];
    }
  }
};

/// The histogram's cell of y = abs(v)/norm <= 1.
template <class L>
LPSGD_HD typename L::I level_cell(typename L::F y) {
  const typename L::I cell = L::truncate(y * 256.0f);
  const typename L::I last = typename L::I{} + (LevelTable::cells - 1);
  return cell < last ? cell : last;
}

template <class L>
LPSGD_HD typename L::I optimal_level(const LevelTable& table, typename L::F v, const Divider<L>& by_norm,
                                     typename L::I half) {
  const typename L::F y = by_norm(magnitude<L>(v));
  const typename L::I cell = level_cell<L>(y);
  const typename L::I low = L::truncate(L::gather(table.low, cell));
  const typename L::F fraction = (y - L::gather(table.lower, cell)) / L::gather(table.width, cell);
  return low + dithers_up<L>(half, fraction);
}

template <class L>
LPSGD_HD typename L::F optimal_value(const LevelTable& table, typename L::I code, float norm, int bits) {
  return qsgd_scaled<L>(L::gather(table.level, code & qsgd_levels(bits)), code, norm, bits);
}

// ---- The rule of any set of levels

template <class L, int width, QsgdOptions::Levels levels>
struct QsgdRule : ScaledRule<QsgdOptions> {
  using Levels = QsgdOptions::Levels;
  using F = typename L::F;
  using I = typename L::I;
  static constexpr int bits = width;
  static constexpr bool dithered = true;
  static constexpr bool has_levels = levels != Levels::interval;
  static constexpr bool divides = levels == Levels::exponential;
  static constexpr int table_bytes = levels == Levels::optimal ? 1 << (width - 1) : 0;
  static constexpr Scale scales[2] = {Scale::max, Scale::norm};
  LPSGD_HD static int scale_index(const QsgdOptions& options) {
    return options.norm == QsgdOptions::Norm::l2 ? 1 : 0;
  }

  const LevelTable* table;  // of optimal levels
  float norm = 0, divisor = 1;
  Divider<L> by_norm;
  LPSGD_HD explicit QsgdRule(const LevelTable* t) : table(t) {}
  LPSGD_HD void start(float scale) {
    norm = scale;
    divisor = qsgd_divisor(scale);
    by_norm = Divider<L>(divisor);
  }
  LPSGD_HD I code(F v, I half) const {
    if constexpr (levels == Levels::interval)
      return interval_code<L>(v, by_norm, norm, half, width);
    else
      return with_sign<L>(v, level(v, half), width);
  }
  LPSGD_HD I level(F v, I half) const {
    if constexpr (levels == Levels::exponential)
      return exponential_level<L>(v, divisor, half, width);
    else if constexpr (levels == Levels::optimal)
      return optimal_level<L>(*table, v, by_norm, half);
    else
      return qsgd_level<L>(v, by_norm, half, width);
  }
  LPSGD_HD F value(I code) const {
    if constexpr (levels == Levels::interval)
      return interval_value<L, width>(code, norm);
    else if constexpr (levels == Levels::exponential)
      return exponential_value<L>(code, norm, width);
    else if constexpr (levels == Levels::optimal)
      return optimal_value<L>(*table, code, norm, width);
    else
      return qsgd_value<L, width>(code, norm);
  }
};

/// Calls use.operator()<width, levels>() for these options. (find_conflict() allows 16 bits only with the
/// first two sets of levels.)
template <int width, class Use>
auto with_qsgd_levels(const QsgdOptions& options, Use use) {
  using Levels = QsgdOptions::Levels;
  if constexpr (width <= 8) {
    if (options.levels == Levels::exponential) return use.template operator()<width, Levels::exponential>();
    if (options.levels == Levels::optimal) return use.template operator()<width, Levels::optimal>();
  }
  if (options.levels == Levels::interval) return use.template operator()<width, Levels::interval>();
  return use.template operator()<width, Levels::sign_magnitude>();
}
template <class Use>
auto with_qsgd_rule(const QsgdOptions& options, Use use) {
  return options.bits == 2   ? with_qsgd_levels<2>(options, use)
         : options.bits == 4 ? with_qsgd_levels<4>(options, use)
         : options.bits == 8 ? with_qsgd_levels<8>(options, use)
                             : with_qsgd_levels<16>(options, use);
}

}  // namespace lpsgd
