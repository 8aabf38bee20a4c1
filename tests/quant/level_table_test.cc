// qsgd's optimal levels against trying every choice.
#include "quant/level_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/philox.h"

namespace lpsgd {
namespace {

std::int64_t level_cost(const std::int64_t* counts, int intervals, const std::int32_t* levels) {
  IntervalCost cost;
  cost.sum_up(counts);
  std::int64_t sum = 0;
  for (int j = 0; j < intervals; ++j) sum += cost(levels[j], levels[j + 1]);
  return sum;
}

using Counts = std::vector<std::int64_t>;
using Levels = std::vector<std::int32_t>;

Levels chosen(const Counts& counts, int intervals) {
  Levels levels(static_cast<std::size_t>(intervals) + 1);
  choose_levels(counts.data(), intervals, levels.data());
  return levels;
}

/// The sum of counts * (x - lo) * (hi - x), cell by cell.
std::int64_t slow_cost(const Counts& counts, const Levels& levels) {
  std::int64_t sum = 0;
  for (std::size_t j = 0; j + 1 < levels.size(); ++j)
    for (std::int64_t c = levels[j]; c < levels[j + 1]; ++c)
      sum +=
          counts[static_cast<std::size_t>(c)] * (2 * c + 1 - 2 * levels[j]) * (2 * levels[j + 1] - 2 * c - 1);
  return sum;
}

std::vector<Counts> histograms() {
  std::vector<Counts> out(1, Counts(256));  // an empty one
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    PhiloxSequence random(seed, RandomUse::dataset, 0);
    Counts counts(256);
    for (std::size_t c = 0; c < 256; ++c) {
      const double x = static_cast<double>(c) / 256;
      counts[c] = seed % 4 == 0   ? random.below(1000)                                      // anything
                  : seed % 4 == 1 ? static_cast<std::int64_t>(1e9 * std::exp(-20 * x * x))  // bell-shaped
                  : seed % 4 == 2 ? (random.below(40) == 0 ? 1 + random.below(3) : 0)       // sparse: ties
                                  : 1;                                                      // flat: ties
    }
    out.push_back(counts);
  }
  return out;
}

TEST(LevelTable, AscendsFromZeroToOne) {
  for (const Counts& counts : histograms())
    for (const int intervals : {1, 2, 7, 127, 255, 256}) {
      const Levels levels = chosen(counts, intervals);
      EXPECT_EQ(levels.front(), 0);
      EXPECT_EQ(levels.back(), 256);
      EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end(), std::less_equal<>()));
      EXPECT_EQ(level_cost(counts.data(), intervals, levels.data()), slow_cost(counts, levels));
    }
}

// With three intervals every pair of inner levels can be tried.
TEST(LevelTable, IsTheBestAndOfEqualOnesTheSmallest) {
  for (const Counts& counts : histograms()) {
    const Levels levels = chosen(counts, 3);
    std::int64_t best = -1;
    Levels smallest;
    for (std::int32_t a = 1; a < 255; ++a)
      for (std::int32_t b = a + 1; b < 256; ++b) {
        const Levels tried{0, a, b, 256};
        const std::int64_t cost = level_cost(counts.data(), 3, tried.data());
        if (best < 0 || cost < best) {  // the first of equal ones has the smallest levels
          best = cost;
          smallest = tried;
        }
      }
    EXPECT_EQ(levels, smallest);
  }
}

TEST(LevelTable, IsNeverWorseThanUniformLevelsOfTheSameGrid) {
  for (const Counts& counts : histograms())
    for (const int intervals : {1, 3, 7, 127}) {
      Levels uniform;
      for (int j = 0; j <= intervals; ++j)
        uniform.push_back(static_cast<std::int32_t>(std::lround(256.0 * j / intervals)));
      const Levels levels = chosen(counts, intervals);
      EXPECT_LE(level_cost(counts.data(), intervals, levels.data()),
                level_cost(counts.data(), intervals, uniform.data()));
    }
}

// sign_magnitude's levels j/s lie off the grid; on bell-shaped gradients the grid's best are better still.
TEST(LevelTable, BeatsUniformLevelsOnABell) {
  const Counts counts = histograms()[2];
  for (const int s : {7, 127}) {
    const Levels levels = chosen(counts, s);
    double uniform = 0;
    for (std::size_t c = 0; c < 256; ++c) {
      const double x = (2 * static_cast<double>(c) + 1) / 512, low = std::floor(x * s) / s;
      uniform += static_cast<double>(counts[c]) * (x - low) * (low + 1.0 / s - x);
    }
    const double best = static_cast<double>(level_cost(counts.data(), s, levels.data())) / (512.0 * 512.0);
    EXPECT_LT(best, uniform * (s == 7 ? 0.8 : 1.0)) << s;
  }
}

}  // namespace
}  // namespace lpsgd
