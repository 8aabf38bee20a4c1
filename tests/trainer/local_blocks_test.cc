// Hierarchical local SGD: blocks of ranks average by themselves in between.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/local_run.h"
#include "trainer/batch_inputs.h"

namespace lpsgd {
namespace {

using namespace local_run;

TEST(LocalStep, BlocksOfWhichEachSynchronisationIsOfAllAreFlat) {
  for (const char* codec : {"none", "onebit", "sign", "{kind: qsgd, bits: 4, bucket: 64}"})
    for (const int ranks : {2, 4}) {
      const std::string with_codec = std::string("exchange.codec=") + codec;
      const auto flat = trained(small_run({"sync.kind=local_sgd", "sync.steps=2", with_codec}), ranks);
      for (const char* size :
           {"sync.ranks_per_block=1", "sync.ranks_per_block=2", "sync.ranks_per_block=node"}) {
        EXPECT_EQ(trained(small_run(with(hierarchical, {with_codec, "sync.block_steps=1", size})), ranks),
                  flat)
            << codec << ", " << size << ", " << ranks << " ranks";
      }
      EXPECT_NE(trained(small_run(with(hierarchical, {with_codec, "sync.ranks_per_block=1"})), ranks), flat);
    }
}

TEST(LocalStep, BlocksAverageByThemselvesInBetween) {
  const RunConfig run = small_run(with(hierarchical, {"exchange.codec=none"}));
  std::vector<std::unique_ptr<SmallModel>> models;
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int r = 0; r < 4; ++r) {
    models.push_back(std::make_unique<SmallModel>(run, r, 4));
    loaders.push_back(small_loader(run, samples, r, 4));
  }
  const auto weights = [](SmallModel& m) { return m.network.parameters(); };
  for (std::int64_t s = 0; s < steps; ++s) {
    for (std::size_t r = 0; r < 4; ++r) {
      if (s % per_epoch == 0) loaders[r]->start(s / per_epoch);
      models[r]->network.forward_train(samples_of(loaders[r]->next(), 1), s);
      models[r]->network.backward({});
      models[r]->optimizer.set_rate(rate_at(s), s);
      models[r]->optimizer.step(models[r]->network.parameters(), models[r]->network.gradients());
    }
    if (s % 2 == 0) continue;
    const auto averaged = [&](std::size_t first, std::size_t count) {
      std::vector<std::unique_ptr<SmallModel>> some;
      for (std::size_t r = first; r < first + count; ++r) some.push_back(std::move(models[r]));
      average(some, weights);
      for (std::size_t r = first; r < first + count; ++r) models[r] = std::move(some[r - first]);
    };
    if (s % 6 == 5) {
      averaged(0, 4);
    } else {
      averaged(0, 2);
      averaged(2, 2);
    }
  }
  const auto got = trained(run, 4);
  for (std::size_t r = 0; r < 4; ++r)
    EXPECT_LT(worst_difference(got[r], values(models[r]->network.parameters())), 1e-6) << r;
}

TEST(LocalStep, BlocksAreEqualAndThenAllRanks) {
  for (const char* codec : {"onebit", "{kind: qsgd, bits: 2, bucket: 64}", "sign"}) {
    const RunConfig run = small_run(with(hierarchical, {std::string("exchange.codec=") + codec}));
    std::vector<std::vector<std::vector<float>>> after(4);
    run_thread_ranks(4, [&](Transport& transport) {
      Rank rank(run, transport);
      for (std::int64_t s = 0; s < steps; ++s) {
        rank.train(s, s + 1);
        EXPECT_EQ(rank.step->is_synchronised(), s % 6 == 5);
        EXPECT_TRUE(rank.step->replicas_equal());
        after[static_cast<std::size_t>(transport.rank())].push_back(rank.weights());
      }
      const StepMetrics m = rank.step->take({});
      EXPECT_EQ(m.exchanges, 6);
    });
    for (std::size_t s = 0; s < steps; ++s) {
      EXPECT_EQ(after[0][s] == after[1][s], s % 2 == 1) << codec << ", step " << s;
      EXPECT_EQ(after[2][s] == after[3][s], s % 2 == 1) << codec << ", step " << s;
      EXPECT_EQ(after[0][s] == after[2][s], s % 6 == 5) << codec << ", step " << s;
    }
  }
}

/// Blocks whose weights and gradients are the same draw their dither by the rank among all.
TEST(LocalStep, BlocksDrawTheirDitherByTheRunsRanks) {
  const RunConfig run =
      small_run({"sync.kind=hierarchical_local_sgd", "sync.steps=1", "sync.block_steps=100",
                 "sync.ranks_per_block=1", "exchange.codec={kind: qsgd, bits: 2, bucket: 64}"});
  std::vector<std::vector<float>> after(2);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.loader = small_loader(run, samples, 0, 2);
    rank.train(0, 1);
    after[static_cast<std::size_t>(transport.rank())] = rank.weights();
  });
  EXPECT_NE(after[0], after[1]);
}

}  // namespace
}  // namespace lpsgd
