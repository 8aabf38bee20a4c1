// What the normalisations over pixels share: rows of channels, and moments.
#pragma once

#include <cstdint>

namespace lpsgd::cpu {

constexpr std::int64_t block_floats = 4096;  // of narrow rows: 16 KiB, within the first-level cache
constexpr std::int64_t min_rows = 64;        // of wide rows: a block's moments cost as much as a few rows

/// How many pixels are one row, so that rows of few channels fill the vectors; they divide `pixels`.
constexpr std::int64_t pixels_of_row(std::int64_t channels, std::int64_t pixels) {
  constexpr std::int64_t width = 64;
  const std::int64_t fold = channels < width && width % channels == 0 ? width / channels : 1;
  return pixels % fold == 0 ? fold : 1;
}

/// Combines the moments (count_b, mean_b, m2_b), m2 being the sum of squared differences from the mean, with
/// (count_a, mean, m2) (Chan, Golub and LeVeque 1979).
inline void join_moments(double& mean, double& m2, double count_a, double mean_b, double m2_b,
                         double count_b) {
  const double delta = mean_b - mean;
  const double share = count_b / (count_a + count_b);
  mean += delta * share;
  m2 += m2_b + delta * delta * count_a * share;
}

}  // namespace lpsgd::cpu
