// Rounding at random: its mean and its variance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/quant/codec_cases.h"
#include "tests/quant/slow_codec.h"

namespace lpsgd {
namespace {

using namespace codec_cases;
constexpr CodingContext context{.seed = 9, .step = 7, .rank = 1, .round = 1};
constexpr std::uint32_t tensor = 3;

/// The levels that a value may be rounded to in a bucket of norm 1, ascending, from -1 to 1.
std::vector<double> levels_of(const CodecSpec& spec, const std::vector<float>& values) {
  const auto o = options_of<QsgdOptions>(spec.options);
  const int s = (1 << (o.bits - 1)) - 1;
  std::vector<double> out;
  if (o.levels == QsgdOptions::Levels::interval) {
    for (int c = 0; c < 1 << o.bits; ++c) out.push_back(2.0 * c / ((1 << o.bits) - 1) - 1);
    return out;
  }
  std::vector<int> table;
  if (o.levels == QsgdOptions::Levels::optimal)
    table = slow::optimal_levels(spec, values, static_cast<std::int64_t>(values.size()));
  for (int j = -s; j <= s; ++j) {
    const int k = std::abs(j);
    const double level = o.levels == QsgdOptions::Levels::sign_magnitude ? static_cast<double>(k) / s
                         : o.levels == QsgdOptions::Levels::optimal
                             ? table[static_cast<std::size_t>(k)] / 256.0
                         : k == 0 ? 0.0
                                  : std::ldexp(1.0, k - s);
    out.push_back(j < 0 ? -level : level);
  }
  return out;
}

struct Neighbours {
  double below = 0, above = 0;
};

// Rounding at random to the neighbours lo <= v <= hi without bias has mean v and variance (v-lo)(hi-v). Over
// N draws the mean of each value stays within 5 of its standard errors (6e-7 a value; 2e-3 for all the
// 2,300 values of these tests, whose seeds are fixed), and the dither's 2^-17 steps shift it by at most 2^-17
// of the gap. `slack`: what the arithmetic may add. Returns the mean sum of squared errors.
double expect_unbiased(const std::string& text, const Codec& codec, const std::vector<float>& values,
                       const std::vector<Neighbours>& neighbours, double slack) {
  const int draws = 4000;
  std::vector<double> sum(values.size());
  double error_squares = 0, expected_squares = 0;
  for (int d = 0; d < draws; ++d) {
    CodingContext c = context;
    c.step = static_cast<std::uint32_t>(d);
    c.seed = static_cast<std::uint32_t>(d % 7);
    const Encoded e = encode(codec, values, {}, c, tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(e.decoded[i]) - static_cast<double>(values[i]);
      sum[i] += error;
      error_squares += error * error;
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto [below, above] = neighbours[i];
    const auto v = static_cast<double>(values[i]);
    const double variance = std::max(0.0, (v - below) * (above - v));
    expected_squares += variance;
    EXPECT_LT(std::fabs(sum[i] / draws), 5 * std::sqrt(variance / draws) + (above - below) * 0x1p-17 + slack)
        << text << ", value " << i;
  }
  // The sum over 128 values and 4000 draws varies by less than 1/100 of itself, five times over.
  const double measured = error_squares / draws;
  EXPECT_NEAR(measured / expected_squares, 1, 0.02) << text;
  return measured;
}

// The bucket's error stays within the bound of QSGD (Alistarh et al. 2017, lemma 3.1), min(n/s^2, sqrt(n)/s)
// |v|^2, which holds for the 2-norm and uniform levels.
TEST(Codec, QsgdIsUnbiasedAndItsVarianceIsThatOfItsLevels) {
  const std::int64_t n = 128;
  for (const char* text :
       {"{kind: qsgd, bits: 2, norm: l2}", "{kind: qsgd, bits: 4, norm: l2}",
        "{kind: qsgd, bits: 8, norm: l2}", "{kind: qsgd, bits: 16, norm: l2}", "{kind: qsgd, bits: 2}",
        "{kind: qsgd, bits: 4}", "{kind: qsgd, bits: 2, levels: interval}",
        "{kind: qsgd, bits: 4, levels: interval}", "{kind: qsgd, bits: 4, levels: exponential}",
        "{kind: qsgd, bits: 4, levels: optimal}", "{kind: qsgd, bits: 8, levels: optimal}"}) {
    const CodecSpec spec = spec_of(text);
    const auto o = options_of<QsgdOptions>(spec.options);
    const std::vector<float> values = inputs(n, 0);
    double largest = 0, squares = 0;
    for (const float v : values) {
      largest = std::max(largest, std::fabs(static_cast<double>(v)));
      squares += static_cast<double>(v) * v;
    }
    const double norm = o.norm == QsgdOptions::Norm::l2 ? std::sqrt(squares) : largest;
    const std::vector<double> levels = levels_of(spec, values);
    std::vector<Neighbours> neighbours;
    for (const float v : values) {
      const auto above =
          std::lower_bound(levels.begin() + 1, levels.end() - 1, static_cast<double>(v) / norm);
      neighbours.push_back({*(above - 1) * norm, *above * norm});
    }
    const double measured = expect_unbiased(text, Codec(spec, n), values, neighbours, norm * 1e-6);
    if (o.norm == QsgdOptions::Norm::l2) {
      const double s = (1 << (o.bits - 1)) - 1, dimension = static_cast<double>(n);
      EXPECT_LE(measured, std::min(dimension / (s * s), std::sqrt(dimension) / s) * squares * 1.02) << text;
    }
  }
}

// Also of the largest value of a block, which a scale that is rounded down would clamp.
TEST(Codec, MxIsUnbiasedAndItsVarianceIsThatOfItsElements) {
  const std::int64_t n = 256;
  for (const char* text : {"mx", "{kind: mx, element: e4m3}", "{kind: mx, element: e5m2}"}) {
    const CodecSpec spec = spec_of(text);
    const std::vector<double> magnitudes = slow::mx_magnitudes(options_of<MxOptions>(spec.options).element);
    const std::vector<float> values = inputs(n, 0);
    std::vector<Neighbours> neighbours;
    for (std::size_t i = 0; i < values.size(); ++i) {
      double largest = 0;
      for (std::size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
        largest = std::max(largest, std::fabs(static_cast<double>(values[j])));
      const double scale = std::exp2(std::ceil(std::log2(largest / magnitudes.back())));
      const double y = std::fabs(static_cast<double>(values[i])) / scale;
      ASSERT_LE(y, magnitudes.back());
      const auto above = std::lower_bound(magnitudes.begin() + 1, magnitudes.end() - 1, y);
      const double low = *(above - 1) * scale, high = *above * scale;
      neighbours.push_back(values[i] < 0 ? Neighbours{-high, -low} : Neighbours{low, high});
    }
    expect_unbiased(text, Codec(spec, n), values, neighbours, 0);
  }
}

}  // namespace
}  // namespace lpsgd
