// Divider against the division of the machine: bit for bit wherever a codec can see a difference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/philox.h"
#include "quant/codec_math_device.h"

namespace lpsgd {
namespace {

constexpr float smallest = 0x1p-40f;  // quotient that must be exact

testing::AssertionResult divides(float x, float by) {
  const float expected = x / by, got = Divider<ScalarLanes>(by)(x);
  if (ScalarLanes::bits(expected) == ScalarLanes::bits(got)) return testing::AssertionSuccess();
  const bool tiny = std::fabs(expected) < smallest;
  if (tiny && std::fabs(got) < 2 * smallest && (got == 0 || std::signbit(got) == std::signbit(x)))
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << std::hexfloat << x << " / " << by << " is " << expected << ", got "
                                     << got;
}

// A quotient can only be rounded wrongly where it is next to the middle of two floats: then X 2^k - D M = c
// for a small c, with X and D of 24 bits and M, odd, of 25. D = 2^j D' with D' odd, so 2^j divides c. For
// each D, k and c this gives M modulo 2^(k-j).
TEST(Quotient, NextToTheMiddleOfTwoFloats) {
  std::int64_t tried = 0;
  const auto attempt = [&](std::uint64_t d, int k, std::int64_t c, std::uint64_t m) {
    if (m < 1u << 24 || m >= 1u << 25) return;
    const std::uint64_t x = (d * m + static_cast<std::uint64_t>(c)) >> k;
    if (x < 1u << 23 || x >= 1u << 24) return;
    ++tried;
    ASSERT_TRUE(divides(std::ldexp(static_cast<float>(x), 24 - k), static_cast<float>(d)));
  };
  for (int j = 0; j <= 2; ++j)
    for (std::uint64_t odd = (1u << (23 - j)) + 1; odd < 1u << (24 - j); odd += 2) {
      std::uint64_t inverse = odd;  // modulo 2^64, by Newton
      for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
      for (const int k : {24, 25})
        for (const std::int64_t c : {-7, -5, -3, -1, 1, 3, 5, 7}) {
          if (std::abs(c) << j > 7) continue;
          const std::uint64_t period = std::uint64_t{1} << (k - j);
          const std::uint64_t first = (static_cast<std::uint64_t>(-c) * inverse) & (period - 1);
          for (std::uint64_t m = first; m < 1u << 25; m += period) attempt(odd << j, k, c << j, m);
          if (HasFatalFailure()) return;
        }
    }
  EXPECT_GT(tried, 10'000'000);
}

float random_float(PhiloxSequence& random, int low, int high) {  // exponents
  const std::uint32_t a = random.next(), b = random.next();
  // Few bits, or mostly ones, as often as any mantissa.
  const std::uint32_t mask = b & 1 ? 0x7fffff : b & 2 ? 0x7c0000 : 0x00003f;
  const std::uint32_t mantissa = b & 4 ? ~(a & mask) & 0x7fffff : a & mask;
  const int exponent = low + static_cast<int>((b >> 8) % static_cast<std::uint32_t>(high - low + 1));
  return std::ldexp(1.0f + static_cast<float>(mantissa) * 0x1p-23f, exponent);
}

TEST(Quotient, OfAllSizes) {
  PhiloxSequence random(3, RandomUse::dataset, 5);
  for (int i = 0; i < 20'000'000; ++i) {
    const float by = random_float(random, -149, 127);
    float x = i % 4 == 0 ? random_float(random, -149, 127) : by * random_float(random, -42, 0);
    if (!(by > 0) || !std::isfinite(by)) continue;
    if (!(std::fabs(x) <= by)) x = by;
    ASSERT_TRUE(divides(i % 2 ? x : -x, by));
  }
}

TEST(Quotient, OfTheEnds) {
  using Limits = std::numeric_limits<float>;
  const float ends[] = {0.0f,
                        Limits::denorm_min(),
                        3 * Limits::denorm_min(),
                        std::nextafter(Limits::min(), 0.0f),
                        Limits::min(),
                        0x1p-33f,
                        std::nextafter(0x1p-32f, 0.0f),
                        0x1p-32f,
                        1.0f,
                        0x1p100f,
                        std::nextafter(0x1p100f, 0x1p127f),
                        0x1p126f,
                        0x1.8p126f,
                        Limits::max()};
  for (const float by : ends)
    for (const float x : ends)
      if (by > 0 && x <= by) {
        EXPECT_TRUE(divides(x, by));
        EXPECT_TRUE(divides(-x, by));
      }
  // Every denormal divisor of few bits, its multiples below it.
  for (int d = 1; d < 300; ++d)
    for (int n = 0; n <= d; ++n)
      EXPECT_TRUE(divides(static_cast<float>(n) * Limits::denorm_min(),
                          static_cast<float>(d) * Limits::denorm_min()));
}

template <int by>
void check_integers() {
  for (int whole = 0; whole <= by; ++whole) {
    const auto x = static_cast<float>(whole);
    ASSERT_EQ((quotient_of_integers<ScalarLanes, by>(x)), x / static_cast<float>(by)) << whole << '/' << by;
  }
}
TEST(Quotient, OfEveryCode) {
  check_integers<1>();
  check_integers<3>();
  check_integers<7>();
  check_integers<15>();
  check_integers<127>();
  check_integers<255>();
  check_integers<32767>();
  check_integers<65535>();
}

}  // namespace
}  // namespace lpsgd
