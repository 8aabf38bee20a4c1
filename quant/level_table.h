// The choice of qsgd's optimal levels (ZipML: Zhang et al. 2017, section 3.1): dynamic programming finds the
// levels with the smallest expected variance for a histogram.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/philox.h"  // LPSGD_HD

namespace lpsgd {

/// 512^2 times the cost of an interval between two levels (below), from the counts' sums and moments.
struct IntervalCost {
  static constexpr int points = 257;
  std::int64_t count[points], first[points], second[points];

  template <class Count>
  LPSGD_HD void sum_up(const Count* counts) {
    count[0] = first[0] = second[0] = 0;
    for (int c = 0; c + 1 < points; ++c) {
      const std::int64_t x = 2 * c + 1, n = static_cast<std::int64_t>(counts[c]);
      count[c + 1] = count[c] + n;
      first[c + 1] = first[c] + n * x;
      second[c + 1] = second[c] + n * x * x;
    }
  }
  /// For a level at a and the next at b, both in 1/256.
  LPSGD_HD std::int64_t operator()(int a, int b) const {
    const std::int64_t lo = 2 * a, hi = 2 * b;
    return (lo + hi) * (first[b] - first[a]) - lo * hi * (count[b] - count[a]) - (second[b] - second[a]);
  }
};

/// Chooses intervals + 1 levels from {0, 1/256, ..., 1}, all different, the first 0 and the last 1, that
/// minimise the sum over cells of counts[c] * (x - lo) * (hi - x), x the centre (2c+1)/512 of cell c and lo,
/// hi the levels around it. In integers; of equal choices the smaller levels. Writes levels[0..intervals],
/// each times 256. 1 <= intervals <= 256; the counts' sum is below 2^44.
void choose_levels(const std::int64_t counts[256], int intervals, std::int32_t* levels);

}  // namespace lpsgd
