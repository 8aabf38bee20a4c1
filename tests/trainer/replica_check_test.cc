#include "trainer/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string>

#include "core/error.h"
#include "tests/trainer/small_run.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

/// What all ranks say after `change` was called on each of them; "" if the replicas are equal.
std::string verdict(int ranks, const std::function<void(int rank, SmallModel& model)>& change,
                    std::int64_t steps = 6, std::int64_t every = 3) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](Transport& transport) {
    SmallModel model(small_run(), 0, 1);
    ReplicaCheck check(every, {}, transport, model.network, model.optimizer);
    change(transport.rank(), model);
    try {
      check.after_step(steps);
    } catch (const ReplicaError& e) {
      said[static_cast<std::size_t>(transport.rank())] = e.what();
    }
  });
  EXPECT_THAT(said, testing::Each(said[0]));
  return said[0];
}

void flip_lowest_bit(float& value) {
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1u);
}

/// A value of the tensor `name` in an arena.
float& element(SmallModel& model, std::span<float> arena, const std::string& name, std::int64_t i) {
  for (const TensorInfo& t : model.network.tensors())
    if (t.name == name) return arena[static_cast<std::size_t>(t.offset + i)];
  throw Error("no tensor " + name);
}

TEST(ReplicaCheck, EqualReplicasPass) {
  for (const int ranks : {1, 2, 3}) EXPECT_EQ(verdict(ranks, [](int, SmallModel&) {}), "");
}

TEST(ReplicaCheck, NamesTensorElementAndRanks) {
  const auto flip = [](int rank, SmallModel& model) {
    if (rank == 1) flip_lowest_bit(element(model, model.network.parameters(), "fc.weight", 7));
  };
  EXPECT_EQ(
      verdict(3, flip),
      "step 5: the replicas are not equal: in the weights of 'fc.weight' rank 1 differs from ranks 0, 2, "
      "from element 7 on; 1 of 5 tensors differ");
  EXPECT_THAT(verdict(2, flip), HasSubstr("'fc.weight' rank 0 and rank 1 differ, from element 7 on"));
}

TEST(ReplicaCheck, TheMajorityIsTakenForRight) {
  EXPECT_THAT(verdict(5,
                      [](int rank, SmallModel& model) {
                        if (rank == 0) element(model, model.network.parameters(), "bn.weight", 3) += 1;
                        if (rank == 3) element(model, model.network.parameters(), "bn.weight", 2) += 2;
                      }),
              HasSubstr("'bn.weight' ranks 0, 3 differ from ranks 1-2, 4, from element 2 on"));
}

TEST(ReplicaCheck, TheFirstTensorIsNamedAndAllAreCounted) {
  EXPECT_THAT(verdict(2,
                      [](int rank, SmallModel& model) {
                        for (float& p : model.network.parameters()) p += static_cast<float>(rank);
                      }),
              testing::AllOf(HasSubstr("'conv.weight'"), HasSubstr("from element 0 on; 5 of 5 tensors")));
}

TEST(ReplicaCheck, MomentumCountsAndSoDoNaNs) {
  EXPECT_THAT(verdict(2,
                      [](int rank, SmallModel& model) {
                        element(model, model.optimizer.momentum(), "fc.bias", 2) = static_cast<float>(rank);
                      }),
              HasSubstr("in the momentum values of 'fc.bias'"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(
      verdict(
          2, [&](int, SmallModel& model) { element(model, model.network.parameters(), "fc.bias", 2) = nan; }),
      "");
}

TEST(ReplicaCheck, ComparesWhenItIsDue) {
  const auto flip = [](int rank, SmallModel& model) {
    flip_lowest_bit(model.network.parameters()[static_cast<std::size_t>(rank)]);
  };
  EXPECT_EQ(verdict(2, flip, 5, 3), "");
  EXPECT_NE(verdict(2, flip, 9, 3), "");
  EXPECT_EQ(verdict(2, flip, 9, 0), "");
}

TEST(ReplicaCheck, WhatIsDueBetweenSynchronisationsIsComparedAtTheNextOne) {
  using Comparable = ReplicaCheck::Comparable;
  run_thread_ranks(2, [](Transport& transport) {
    SmallModel model(small_run(), 0, 1);
    ReplicaCheck check(4, {}, transport, model.network, model.optimizer);
    check.after_step(4, Comparable::nothing);
    check.after_step(5, Comparable::nothing);
    check.after_step(6, Comparable::weights);
    model.network.parameters()[0] += static_cast<float>(transport.rank());
    check.after_step(7, Comparable::weights);  // nothing is due
    check.after_step(8, Comparable::nothing);
    EXPECT_THROW(check.after_step(9, Comparable::weights), ReplicaError);
  });
}

TEST(ReplicaCheck, ACheckpointIsPrecededByAComparison) {
  run_thread_ranks(2, [](Transport& transport) {
    SmallModel model(small_run(), 0, 1);
    ReplicaCheck check(100, {}, transport, model.network, model.optimizer);
    check.before_checkpoint(7);
    model.network.parameters()[0] += static_cast<float>(transport.rank());
    check.before_checkpoint(7);  // was compared
    EXPECT_THROW(check.before_checkpoint(8), ReplicaError);
    ReplicaCheck none(0, {}, transport, model.network, model.optimizer);
    none.before_checkpoint(8);
  });
}

TEST(ReplicaCheck, APlannedFlipChangesOneBitOnOneRank) {
  run_thread_ranks(2, [](Transport& transport) {
    SmallModel model(small_run(), 0, 1);
    const std::vector<float> before = values(model.network.parameters());
    const BitFlip flip{.step = 4, .rank = 1, .tensor = "fc.bias", .element = 1, .bit = 30};
    ReplicaCheck check(1, flip, transport, model.network, model.optimizer);
    check.after_step(3);
    EXPECT_EQ(values(model.network.parameters()), before);
    EXPECT_THROW(check.after_step(4), ReplicaError);
    std::vector<float> expected = before;
    if (transport.rank() == 1) {
      float& changed = expected[static_cast<std::size_t>(
          &element(model, model.network.parameters(), "fc.bias", 1) - model.network.parameters().data())];
      changed = std::bit_cast<float>(std::bit_cast<std::uint32_t>(changed) ^ (1u << 30));
    }
    EXPECT_EQ(values(model.network.parameters()), expected);
  });
}

TEST(ReplicaCheck, AFlipThatCannotBeIsRefused) {
  run_thread_ranks(2, [](Transport& transport) {
    SmallModel model(small_run(), 0, 1);
    const auto refused = [&](const BitFlip& flip) -> std::string {
      try {
        ReplicaCheck(1, flip, transport, model.network, model.optimizer);
      } catch (const ConfigError& e) {
        return e.what();
      }
      return "";
    };
    EXPECT_EQ(refused({.step = 1, .tensor = "nothing"}),
              "exchange.inject.tensor: the network has no 'nothing'");
    EXPECT_EQ(refused({.step = 1, .tensor = "fc.bias", .element = 3}),
              "exchange.inject.element: 'fc.bias' has 3 elements, so 3 is not one of them");
    EXPECT_EQ(refused({.step = 1, .rank = 2, .tensor = ""}),
              "exchange.inject.rank: there are 2 ranks, so 2 is not one of them");
  });
}

}  // namespace
}  // namespace lpsgd
