#include "data/sequence_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/philox.h"

namespace lpsgd {
namespace {

std::vector<std::int64_t> random_lengths(std::size_t count, std::uint32_t below) {
  PhiloxSequence random(1, RandomUse::dataset, 5);
  std::vector<std::int64_t> lengths(count);
  for (auto& length : lengths) length = 1 + random.below(below);
  return lengths;
}

std::int64_t frames_of(std::span<const Piece> pieces) {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.frames;
  return sum;
}

std::int64_t longest(std::span<const Piece> pieces) {
  std::int64_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, piece.frames);
  return most;
}

/// The share of positions x longest length that holds no frame.
double padding(const SequencePlan& plan) {
  std::int64_t room = 0, used = 0;
  for (std::int64_t b = 0; b < plan.batches(); ++b) {
    room += plan.positions() * longest(plan.batch(b));
    used += frames_of(plan.batch(b));
  }
  return 1.0 - static_cast<double>(used) / static_cast<double>(room);
}

std::vector<std::int64_t> sequences_of(const SequencePlan& plan) {
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < plan.batches(); ++b)
    for (const Piece& piece : plan.batch(b))
      if (piece.frames > 0) all.push_back(piece.sequence);
  return all;
}

TEST(WholeSequences, HoldEachSequenceOnceExceptTheLastPartialBatch) {
  const auto lengths = random_lengths(103, 600);
  for (const std::int64_t epoch : {0, 1}) {
    const SequencePlan plan = whole_sequences(lengths, 3, {.positions = 8, .seed = 4, .epoch = epoch});
    ASSERT_EQ(plan.batches(), 12);
    const auto all = sequences_of(plan);
    EXPECT_EQ(all.size(), 96u);
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), 96u);
    for (std::int64_t b = 0; b < 12; ++b)
      for (const Piece& piece : plan.batch(b)) {
        EXPECT_EQ(piece.first, 0);
        EXPECT_EQ(piece.frames, lengths[static_cast<std::size_t>(piece.sequence)]);
        EXPECT_FALSE(piece.continues);
      }
  }
}

TEST(WholeSequences, AreAFunctionOfSeedAndEpoch) {
  const auto lengths = random_lengths(64, 600);
  const auto order = [&](std::uint32_t seed, std::int64_t epoch) {
    return sequences_of(whole_sequences(lengths, 4, {.positions = 8, .seed = seed, .epoch = epoch}));
  };
  EXPECT_EQ(order(1, 2), order(1, 2));
  EXPECT_NE(order(1, 2), order(1, 3));
  EXPECT_NE(order(1, 2), order(2, 2));
}

TEST(WholeSequences, WastedRoomShrinksWithTheWindow) {
  const auto lengths = random_lengths(960, 600);
  const auto wasted = [&](std::int64_t window) {
    return padding(whole_sequences(lengths, window, {.positions = 16}));
  };
  EXPECT_GT(wasted(1), 0.4);
  EXPECT_LT(wasted(16), 0.12);
  EXPECT_LT(wasted(60), 0.04);
}

TEST(WholeSequences, BatchesComeInNoOrderOfLength) {
  const auto lengths = random_lengths(640, 600);
  const SequencePlan plan = whole_sequences(lengths, 40, {.positions = 16});
  int falls = 0;
  for (std::int64_t b = 1; b < plan.batches(); ++b)
    falls += longest(plan.batch(b)) < longest(plan.batch(b - 1));
  EXPECT_GT(falls, 10);
  EXPECT_LT(falls, 30);
}

TEST(WholeSequences, RanksGetSimilarWork) {
  const auto lengths = random_lengths(640, 600);
  const SequencePlan plan = whole_sequences(lengths, 1, {.positions = 16});
  // Dealt in order of length, the longest half would hold three quarters of the frames.
  for (const auto& [ranks, bound] :
       std::vector<std::pair<std::int64_t, double>>{{2, 0.05}, {4, 0.12}, {8, 0.3}}) {
    double sum = 0;  // over batches, of the most loaded rank's frames above the mean
    for (std::int64_t b = 0; b < plan.batches(); ++b) {
      std::int64_t most = 0;
      for (std::int64_t r = 0; r < ranks; ++r)
        most = std::max(most, frames_of(plan.batch(b).subspan(static_cast<std::size_t>(r * 16 / ranks),
                                                              static_cast<std::size_t>(16 / ranks))));
      sum += static_cast<double>(most * ranks) / static_cast<double>(frames_of(plan.batch(b))) - 1;
    }
    EXPECT_LT(sum / static_cast<double>(plan.batches()), bound) << ranks << " ranks";
  }
}

TEST(WholeSequences, EvaluationHasAllSortedByLength) {
  const std::vector<std::int64_t> lengths{5, 9, 1, 7, 3, 2, 8};
  const SequencePlan plan = whole_sequences(lengths, 2, {.positions = 4, .training = false, .epoch = 3});
  ASSERT_EQ(plan.batches(), 2);
  EXPECT_THAT(sequences_of(plan), testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(longest(plan.batch(0)), 9);
  EXPECT_EQ(longest(plan.batch(1)), 3);
  EXPECT_EQ(plan.batch(1)[3].frames, 0);
}

TEST(WholeSequences, UnshuffledTrainingKeepsTheOrderOfBatches) {
  const std::vector<std::int64_t> lengths{5, 9, 1, 7, 3, 2, 8};
  const SequencePlan plan = whole_sequences(lengths, 2, {.positions = 2, .shuffle = false, .epoch = 3});
  EXPECT_THAT(sequences_of(plan), testing::ElementsAre(1, 0, 3, 2, 4, 5));
}

/// Checks that a plan's pieces are those of sequences cut into `truncate` frames, each at one position
/// without a gap; returns how many sequences are complete.
std::size_t check_streams(const SequencePlan& plan, const std::vector<std::int64_t>& lengths,
                          std::int64_t truncate) {
  std::map<std::int64_t, std::int64_t> done;  // frames of each sequence
  for (std::int64_t p = 0; p < plan.positions(); ++p) {
    for (std::int64_t b = 0; b < plan.batches(); ++b) {
      const Piece& piece = plan.batch(b)[static_cast<std::size_t>(p)];
      if (piece.frames == 0) {
        EXPECT_FALSE(piece.continues);
        continue;
      }
      EXPECT_EQ(piece.first, done[piece.sequence]);
      EXPECT_EQ(piece.continues, piece.first > 0);
      if (piece.continues && b > 0) {
        EXPECT_EQ(plan.batch(b - 1)[static_cast<std::size_t>(p)].sequence, piece.sequence);
      }
      done[piece.sequence] += piece.frames;
      const bool last = done[piece.sequence] == lengths[static_cast<std::size_t>(piece.sequence)];
      EXPECT_TRUE(last || piece.frames == truncate);
    }
  }
  return static_cast<std::size_t>(std::count_if(done.begin(), done.end(), [&](const auto& one) {
    return one.second == lengths[static_cast<std::size_t>(one.first)];
  }));
}

TEST(CarriedSequences, AreCutIntoPiecesAtOnePosition) {
  const auto lengths = random_lengths(101, 90);
  for (const std::int64_t truncate : {1, 20, 1000}) {
    std::int64_t pieces = 0;
    for (const std::int64_t length : lengths) pieces += (length + truncate - 1) / truncate;
    const SequencePlan plan = carried_sequences(lengths, truncate, {.positions = 8, .seed = 2});
    EXPECT_EQ(plan.batches(), pieces / 8);
    EXPECT_GT(check_streams(plan, lengths, truncate), 80u);
    const SequencePlan other = carried_sequences(lengths, truncate, {.positions = 8, .seed = 2, .epoch = 1});
    EXPECT_EQ(other.batches(), plan.batches());
    EXPECT_NE(sequences_of(other), sequences_of(plan));
  }
}

TEST(CarriedSequences, EvaluationHasEachFrameOnce) {
  const auto lengths = random_lengths(37, 90);
  const SequencePlan plan = carried_sequences(lengths, 20, {.positions = 8, .training = false});
  EXPECT_EQ(check_streams(plan, lengths, 20), 37u);
  EXPECT_GT(longest(plan.batch(plan.batches() - 1)), 0);
}

TEST(CarriedSequences, FewerSequencesThanPositions) {
  const std::vector<std::int64_t> lengths{50, 10};
  const SequencePlan plan = carried_sequences(lengths, 20, {.positions = 4, .training = false});
  EXPECT_EQ(plan.batches(), 3);
  EXPECT_EQ(check_streams(plan, lengths, 20), 2u);
  EXPECT_EQ(carried_sequences(lengths, 20, {.positions = 4}).batches(), 1);
  EXPECT_EQ(carried_sequences(lengths, 20, {.positions = 8}).batches(), 0);
}

TEST(TokenStreams, TrainingCutsEqualParts) {
  const SequencePlan plan = token_streams(103, 5, {.positions = 4});
  ASSERT_EQ(plan.batches(), 5);  // 25 of each part
  for (std::int64_t b = 0; b < 5; ++b)
    for (std::int64_t p = 0; p < 4; ++p) {
      const Piece& piece = plan.batch(b)[static_cast<std::size_t>(p)];
      EXPECT_EQ(piece.first, 25 * p + 5 * b);
      EXPECT_EQ(piece.frames, 5);
      EXPECT_EQ(piece.continues, b > 0);
    }
  EXPECT_EQ(token_streams(20, 6, {.positions = 4}).batches(), 0);
}

TEST(TokenStreams, EvaluationHasEachTokenOnce) {
  for (const std::int64_t tokens : {1, 3, 4, 20, 103}) {
    const SequencePlan plan = token_streams(tokens, 5, {.positions = 4, .training = false});
    std::vector<int> seen(static_cast<std::size_t>(tokens));
    for (std::int64_t b = 0; b < plan.batches(); ++b)
      for (const Piece& piece : plan.batch(b))
        for (std::int64_t t = 0; t < piece.frames; ++t) ++seen[static_cast<std::size_t>(piece.first + t)];
    EXPECT_THAT(seen, testing::Each(1)) << tokens;
  }
}

}  // namespace
}  // namespace lpsgd
