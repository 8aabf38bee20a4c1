// Philox4x32-10 against the known-answer vectors published with Random123 (kat_vectors, philox4x32 10).
#include "core/philox.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace lpsgd {
namespace {

void expect_block(const Philox4x32& got, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  EXPECT_EQ(got.x[0], a);
  EXPECT_EQ(got.x[1], b);
  EXPECT_EQ(got.x[2], c);
  EXPECT_EQ(got.x[3], d);
}

TEST(Philox, KnownAnswers) {
  expect_block(philox4x32(0, 0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  const std::uint32_t ones = 0xffffffffu;
  expect_block(philox4x32(ones, ones, ones, ones, ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
               0x6d5451fd);
  expect_block(philox4x32(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0), 0xd16cfe09,
               0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, SequenceIsTheBlocksInOrder) {
  PhiloxSequence sequence(7, RandomUse::shuffle, 3, 4, 5);
  for (std::uint32_t block = 0; block < 3; ++block) {
    const Philox4x32 expected = philox4x32(block, 3, 4, 5, 7, 3);
    for (const std::uint32_t x : expected.x) EXPECT_EQ(sequence.next(), x);
  }
}

TEST(Philox, BelowIsUniform) {
  PhiloxSequence sequence(1, RandomUse::shuffle, 0);
  std::vector<int> counts(7);
  const int draws = 70000;
  for (int i = 0; i < draws; ++i) ++counts.at(sequence.below(7));
  double chi2 = 0;
  for (const int c : counts) chi2 += (c - draws / 7.0) * (c - draws / 7.0) / (draws / 7.0);
  EXPECT_LT(chi2, 22.5);  // 6 degrees of freedom, p = 0.001
}

}  // namespace
}  // namespace lpsgd
