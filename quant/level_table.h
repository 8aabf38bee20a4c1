// Where qsgd's optimal levels lie (ZipML: Zhang et al. 2017, section 3.1: the levels of least expected
// variance for a histogram, by dynamic programming).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lpsgd {

/// Chooses intervals + 1 levels from {0, 1/256, ..., 1}, all different, the first 0 and the last 1, that
/// minimise the sum over cells of counts[c] * (x - lo) * (hi - x), x the centre (2c+1)/512 of cell c and lo,
/// hi the levels around it. In integers; of equal choices the smaller levels. Writes levels[0..intervals],
/// each times 256. 1 <= intervals <= 256; the counts' sum is below 2^46.
void choose_levels(const std::int64_t counts[256], int intervals, std::int32_t* levels);

/// 512^2 times that sum for given levels.
std::int64_t level_cost(const std::int64_t counts[256], int intervals, const std::int32_t* levels);

}  // namespace lpsgd
