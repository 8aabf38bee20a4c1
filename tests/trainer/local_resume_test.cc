// Checkpoints of runs with local steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/checksum.h"
#include "core/error.h"
#include "tests/comm/captured_log.h"
#include "tests/trainer/local_run.h"
#include "trainer/averaged_weights.h"

namespace lpsgd {
namespace {

using namespace local_run;

void save(Rank& rank, Transport& transport, std::int64_t step) {
  std::optional<AveragedWeights> average;
  if (!rank.step->is_synchronised()) average.emplace(transport, rank.model.network);
  rank.checkpoints.begin("step-000007", {.step = step, .epoch = step / per_epoch, .batch = step % per_epoch},
                         {}, 0.1, 0, average ? &*average : nullptr);
  rank.checkpoints.finish();
}

TEST(LocalResume, ANonFiniteWeightIsSavedByNoneAndBlamedOnItsRank) {
  const RunConfig run = small_run(local);
  const TestFolder folder;
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 1);
    if (transport.rank() == 1)
      rank.model.network.parameters()[static_cast<std::size_t>(rank.model.network.tensors()[2].offset)] =
          std::numeric_limits<float>::quiet_NaN();
    try {
      save(rank, transport, 1);
      ADD_FAILURE() << "no error";
    } catch (const NonFiniteError& e) {
      EXPECT_EQ(std::string(e.what()), "step 0: the weights of '" + rank.model.network.tensors()[2].name +
                                           "' on rank 1 hold a NaN or an infinity");
    }
  });
}

TEST(LocalResume, AnAverageThatOverflowsIsNotSaved) {
  const RunConfig run = small_run(local);
  const TestFolder folder;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 1);
    rank.model.network.parameters()[0] = std::numeric_limits<float>::max();
    try {
      save(rank, transport, 1);
      ADD_FAILURE() << "no error";
    } catch (const NonFiniteError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("step 0: the average of the ranks' weights of "));
    }
  });
}

/// Resumes in the middle of a phase, and of hierarchical local SGD also between two rounds within blocks.
TEST(LocalResume, GoesOnBitForBit) {
  struct Saved {
    Overrides variant;
    std::int64_t at = 7, rounds = 0;
  };
  for (const auto& [variant, at, rounds] :
       {Saved{with(local, {"optimizer.noise=0.01"})},
        Saved{with(local, {"optimizer={kind: adam}", "exchange.codec=sign"})},
        Saved{{"sync.kind=block_momentum", "sync.steps=5", "sync.nesterov=true"}},
        Saved{{"sync.kind=post_local_sgd", "sync.steps=4", "sync.from=1"}}, Saved{hierarchical},
        Saved{hierarchical, 9, 1}, Saved{with(hierarchical, {"exchange.codec=sign"}), 10, 2},
        Saved{{"sync.kind=local_sgd", "sync.steps=6", "sync.fragments=3"}},
        Saved{{"sync.kind=block_momentum", "sync.steps=4", "sync.nesterov=true", "sync.fragments=2"}},
        Saved{with(streamed, {"exchange.codec=onebit"})},
        Saved{
            with(streamed, {"exchange.codec={kind: qsgd, bits: 4, bucket: 64}", "optimizer={kind: adamw}"})},
        Saved{{"sync.kind=local_sgd", "sync.steps=5", "sync.delay=4", "exchange.codec=sign"}}})
    for (const int ranks : {2, 4}) {
      const RunConfig run = small_run(variant);
      const TestFolder folder;
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank rank(run, transport, folder.path());
        rank.train(0, at);
        EXPECT_FALSE(rank.step->is_synchronised());
        EXPECT_EQ(rank.step->sync_position().rounds, rounds);
        if (rounds > 0) {
          double residuals = 0;
          for (const std::vector<float>& tensor : rank.step->block_exchange()->state().round1)
            for (const float r : tensor) residuals += std::abs(static_cast<double>(r));
          EXPECT_GT(residuals, 0);
        }
        save(rank, transport, at);
        EXPECT_EQ(rank.step->sync_position().has_pending(), run.sync.delay > 0);
      });
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank whole(run, transport), resumed(run, transport);
        whole.train(0, steps);
        whole.step->check_finite();
        EXPECT_FALSE(resumed.checkpoints.restore(find_resume_point(folder.path()).value()).other_ranks);
        EXPECT_FALSE(resumed.step->is_synchronised());
        resumed.train(at, steps);
        resumed.step->check_finite();
        EXPECT_EQ(resumed.step->sync_position(), whole.step->sync_position());
        EXPECT_EQ(resumed.state(), whole.state()) << variant.back();
      });
    }
}

/// Residuals of gradients then become residuals of changes, also if the run before had no `sync`.
TEST(LocalResume, GoesOnBitForBitWhereLocalStepsBegin) {
  const RunConfig run = small_run({"sync.kind=post_local_sgd", "sync.steps=3", "sync.from=1"});
  for (const RunConfig& before : {run, small_run()}) {
    const TestFolder folder;
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(before, transport, folder.path());
      rank.train(0, per_epoch);
      save(rank, transport, per_epoch);
    });
    CapturedLog log;
    run_thread_ranks(2, [&](Transport& transport) {
      Rank whole(run, transport), resumed(run, transport);
      whole.train(0, steps);
      resumed.checkpoints.restore(find_resume_point(folder.path()).value());
      resumed.train(per_epoch, steps);
      EXPECT_EQ(resumed.state(), whole.state());
    });
    EXPECT_THAT(log.text(), ::testing::Not(::testing::HasSubstr("average"))) << "weights were equal";
  }
}

/// A codec that some tensors begin does not touch the others' residuals, within blocks neither.
TEST(LocalResume, ANewCodecKeepsTheOtherResiduals) {
  const TestFolder folder;
  std::vector<ExchangeState> within(4), of_all(4);
  run_thread_ranks(4, [&](Transport& transport) {
    const RunConfig run =
        small_run(with(hierarchical, {"exchange.codec=none",
                                      "exchange.rules=[{kind: conv, codec: {kind: onebit, bucket: 32}}]"}));
    Rank rank(run, transport, folder.path());
    rank.train(0, 9);
    const auto r = static_cast<std::size_t>(transport.rank());
    within[r] = rank.step->block_exchange()->state();
    of_all[r] = rank.step->state();
    save(rank, transport, 9);
  });
  run_thread_ranks(4, [&](Transport& transport) {
    const RunConfig run = small_run(hierarchical);  // onebit for all
    Rank rank(run, transport, folder.path());
    rank.checkpoints.restore(find_resume_point(folder.path()).value());
    const auto r = static_cast<std::size_t>(transport.rank());
    for (const auto& [now, before] : {std::pair{rank.step->block_exchange()->state(), within[r]},
                                      std::pair{rank.step->state(), of_all[r]}}) {
      double sum = 0;
      for (const float value : before.round1[0]) sum += std::abs(static_cast<double>(value));
      EXPECT_GT(sum, 0);
      EXPECT_EQ(now.round1[0], before.round1[0]);
      EXPECT_EQ(now.round2[0], before.round2[0]);
      for (std::size_t t = 1; t < now.round1.size(); ++t) {
        EXPECT_TRUE(before.round1[t].empty());
        EXPECT_EQ(now.round1[t], std::vector<float>(now.round1[t].size()));
        EXPECT_FALSE(now.round1[t].empty());
      }
    }
  });
}

/// Between two synchronisations of all, old blocks have agreed on different weights.
TEST(LocalResume, BlocksOfAnotherSizeGoOnFromTheAverage) {
  const RunConfig run = small_run(hierarchical);
  const TestFolder folder;
  std::vector<std::vector<float>> weights(4);
  run_thread_ranks(4, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 3);
    EXPECT_EQ(rank.step->sync_position().rounds, 1);
    weights[static_cast<std::size_t>(transport.rank())] = rank.weights();
    save(rank, transport, 3);
  });
  ASSERT_NE(weights[0], weights[2]);
  for (const char* size : {"sync.ranks_per_block=1", "sync.ranks_per_block=4"}) {
    const RunConfig next = small_run(with(hierarchical, {size}));
    CapturedLog log;
    run_thread_ranks(4, [&](Transport& transport) {
      Rank rank(next, transport);
      rank.checkpoints.restore(find_resume_point(folder.path()).value());
      EXPECT_TRUE(rank.step->is_synchronised());
      const std::vector<float> average = rank.weights();
      EXPECT_TRUE(transport.all_equal(checksum64(std::as_bytes(std::span(average)))));
      rank.train(3, steps);
    });
    EXPECT_THAT(log.text(), ::testing::HasSubstr("from the average of its 4 ranks' weights and momentum"));
  }
}

/// After fragments ranks' weights differ also where no step has been made since the last turn.
TEST(LocalResume, RanksAreApartUntilASynchronisationOfAllTensors) {
  const RunConfig run = small_run(with(local, {"sync.steps=2", "sync.fragments=2"}));
  const TestFolder folder;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 4);
    EXPECT_EQ(rank.step->sync_position().steps, 0);
    save(rank, transport, 4);
  });
  const RunConfig next = small_run(with(local, {"sync.steps=2"}));
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(next, transport);
    rank.checkpoints.restore(find_resume_point(folder.path()).value());
    const std::vector<float> weights = rank.weights();
    EXPECT_FALSE(transport.all_equal(checksum64(std::as_bytes(std::span(weights)))));
    EXPECT_FALSE(rank.step->is_synchronised());
    EXPECT_TRUE(rank.step->replicas_equal());
    rank.train(4, 6);
    EXPECT_TRUE(rank.step->is_synchronised());
    EXPECT_TRUE(rank.step->replicas_equal());
  });
}

/// What local steps changed is in the ranks' weights, too.
TEST(LocalResume, AMeanOnItsWayIsDroppedWhereItCannotGoOn) {
  const RunConfig run = small_run(streamed);
  const TestFolder folder;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 7);
    EXPECT_EQ(rank.step->sync_position().pending, (SyncPosition::Pending{3, 5, 7}));
    save(rank, transport, 7);
  });
  struct Next {
    Overrides overrides;
    int ranks;
    bool dropped, averaged;
  };
  for (const auto& [overrides, ranks, dropped, averaged] :
       {Next{streamed, 3, true, true}, Next{{}, 2, true, true}, Next{local, 2, true, false},
        Next{with(local, {"sync.fragments=3"}), 2, true, false},
        Next{with(local, {"sync.delay=1"}), 2, false, false},
        Next{with(streamed, {"sync.fragments=3", "sync.delay=1"}), 2, false, false}}) {
    const RunConfig next = small_run(overrides);
    CapturedLog log;
    run_thread_ranks(ranks, [&](Transport& transport) {
      Rank rank(next, transport);
      rank.checkpoints.restore(find_resume_point(folder.path()).value());
      EXPECT_EQ(rank.step->sync_position().has_pending(), !dropped);
      const ExchangeState residuals = rank.step->state();
      const auto is_zero = [&](std::size_t tensor) {
        const std::vector<float>& r = residuals.round1[tensor];
        return std::all_of(r.begin(), r.end(), [](float x) { return x == 0; });
      };
      EXPECT_EQ(is_zero(3) && is_zero(4), dropped) << "a part of what is sent once more";
      if (next.sync.is_local()) {
        EXPECT_FALSE(is_zero(0));
      }
      const std::vector<float> before = rank.weights();
      rank.train(7, 8);
      if (!dropped) {
        EXPECT_NE(rank.step->sync_position().pending.due, 7) << "it was applied";
      }
      rank.train(8, steps);
      rank.step->check_finite();
      EXPECT_TRUE(rank.step->replicas_equal());
      EXPECT_NE(rank.weights(), before);
    });
    const std::string text = log.text();
    EXPECT_EQ(
        text.find("a mean of changes that was to be applied after step 7 is dropped") != std::string::npos,
        dropped);
    EXPECT_EQ(text.find("from the average of its 2 ranks'") != std::string::npos, averaged);
  }
}

/// All ranks have the same, so other ranks can have it, too.
TEST(LocalResume, OtherRanksKeepTheOuterMomentum) {
  const RunConfig run = small_run({"sync.kind=block_momentum", "sync.steps=3", "sync.nesterov=true"});
  const TestFolder folder;
  const auto outer = [](Rank& rank) {
    for (const NamedArena& arena : rank.step->arenas())
      if (arena.name == "outer_momentum") return values(arena.values);
    return std::vector<float>{};
  };
  std::vector<float> before;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 7);
    if (transport.rank() == 0) before = outer(rank);
    save(rank, transport, 7);
  });
  ASSERT_TRUE(std::ranges::any_of(before, [](float u) { return u != 0; }));
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, transport);
    EXPECT_TRUE(rank.checkpoints.restore(find_resume_point(folder.path()).value()).other_ranks);
    EXPECT_EQ(outer(rank), before);
  });
}

TEST(LocalResume, OtherRanksGoOnFromTheAverage) {
  const RunConfig run = small_run(local);
  const TestFolder folder;
  std::vector<std::vector<float>> weights(2), momentum(2);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport, folder.path());
    rank.train(0, 7);
    weights[static_cast<std::size_t>(transport.rank())] = rank.weights();
    momentum[static_cast<std::size_t>(transport.rank())] = values(rank.model.optimizer.momentum());
    save(rank, transport, 7);
  });
  ASSERT_NE(weights[0], weights[1]);
  const auto mean = [](const std::vector<std::vector<float>>& of) {
    std::vector<float> out(of[0].size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = (of[0][i] + of[1][i]) * 0.5f;
    return out;
  };
  struct Next {
    Overrides overrides;
    int ranks;
  };
  // Also as synchronous SGD.
  for (const auto& [overrides, ranks] :
       {Next{local, 3}, Next{with(hierarchical, {"sync.ranks_per_block=1"}), 3}, Next{{}, 2}, Next{{}, 3}}) {
    const RunConfig next = small_run(overrides);
    const bool gradients = overrides.empty();
    CapturedLog log;
    run_thread_ranks(ranks, [&](Transport& transport) {
      Rank rank(next, transport);
      const Resumed at = rank.checkpoints.restore(find_resume_point(folder.path()).value());
      EXPECT_EQ(at.other_ranks, transport.size() == 3);
      EXPECT_EQ(rank.weights(), mean(weights));
      EXPECT_TRUE(rank.step->is_synchronised());
      for (const NamedArena& arena : rank.step->arenas())
        if (arena.otherwise == NamedArena::Otherwise::average) {
          EXPECT_EQ(values(arena.values), mean(weights)) << arena.name;
        }
      EXPECT_EQ(values(rank.model.optimizer.momentum()), mean(momentum));
      double residuals = 0;
      for (const std::vector<float>& tensor : rank.step->state().round1)
        for (const float r : tensor) residuals += std::abs(static_cast<double>(r));
      EXPECT_EQ(residuals > 0, !gradients) << "they hold changes of weights";
      rank.train(7, 10);
      EXPECT_EQ(rank.step->is_synchronised(), overrides.size() <= 2) << "a phase began";
    });
    EXPECT_THAT(log.text(), ::testing::HasSubstr("from the average of its 2 ranks' weights and momentum"));
    EXPECT_EQ(log.text().find("residuals are zero") != std::string::npos, gradients);
    EXPECT_EQ(log.text().find("round-1 residuals") != std::string::npos, !gradients);
  }
}

}  // namespace
}  // namespace lpsgd
