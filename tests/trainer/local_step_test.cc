// Local SGD and its relatives, against the formulas written out.
#include "trainer/local_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "tests/comm/captured_log.h"
#include "tests/trainer/local_run.h"
#include "trainer/averaged_weights.h"
#include "trainer/batch_inputs.h"

namespace lpsgd {
namespace {

using namespace local_run;

std::vector<float> statistics_of(Network& network) {
  std::vector<float> out;
  for (const NamedBuffer& b : network.buffers()) {
    const std::vector<float> some = values(b.values);
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

/// The weights of each rank after `steps` steps with codec none: a loop over the ranks' models. `statistics`:
/// also the running statistics of each.
std::vector<std::vector<float>> reference(const RunConfig& run, int ranks,
                                          std::vector<std::vector<float>>* statistics = nullptr) {
  std::vector<std::unique_ptr<SmallModel>> models;
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int r = 0; r < ranks; ++r) {
    models.push_back(std::make_unique<SmallModel>(run, r, ranks));
    loaders.push_back(small_loader(run, samples, r, ranks));
  }
  std::vector<float> agreed = values(models[0]->network.parameters()), u(agreed.size());
  const std::vector<Fragment> fragments =
      fragments_of(models[0]->network.tensors(), run.sync.fragments, agreed.size());
  struct Pending {
    Fragment fragment;
    std::vector<float> mean;
    std::int64_t due;
  };
  std::optional<Pending> pending;
  const bool block = run.sync.kind == SyncKind::block_momentum;
  const auto mu = static_cast<float>(block ? run.sync.momentum : 0);
  const auto rate = static_cast<float>(block ? run.sync.rate : 1);
  const auto mix = static_cast<float>(run.sync.delay > 0 ? run.sync.mix : 0);
  const auto arrive = [&] {
    for (std::size_t k = 0; k < pending->mean.size(); ++k) {
      const std::size_t i = pending->fragment.at + k;
      const float mean = pending->mean[k];
      u[i] = mu * u[i] + mean;
      agreed[i] -= rate * (run.sync.nesterov ? mean + mu * u[i] : u[i]);
      for (const auto& model : models) {
        float& w = model->network.parameters()[i];
        w = mix * w + (1 - mix) * agreed[i];
        if (run.sync.reset_momentum) model->optimizer.momentum()[i] = 0;
      }
    }
    pending.reset();
  };
  std::int64_t since = 0;
  bool started = false;
  for (std::int64_t s = 0; s < steps; ++s) {
    for (std::size_t r = 0; r < models.size(); ++r) {
      if (s % per_epoch == 0) loaders[r]->start(s / per_epoch);
      Network& network = models[r]->network;
      network.forward_train(samples_of(loaders[r]->next(), 1), s);
      network.backward({});
    }
    started = started || interval_at(run, s) > 1 || run.sync.kind == SyncKind::block_momentum ||
              (run.sync.kind == SyncKind::local_sgd && run.sync.reset_momentum);
    if (!started) average(models, [](SmallModel& m) { return m.network.gradients(); });
    for (const auto& model : models) {
      model->optimizer.set_rate(rate_at(s), s);
      model->optimizer.step(model->network.parameters(), model->network.gradients());
    }
    if (!started) agreed = values(models[0]->network.parameters());
    if (!started) continue;
    if (pending && pending->due == s) arrive();
    const std::int64_t turns = interval_at(run, s) / run.sync.fragments;
    if (++since < turns || since % turns != 0) continue;
    const Fragment fragment = fragments[static_cast<std::size_t>(since / turns) - 1];
    since %= interval_at(run, s);
    pending = {fragment, {}, s + run.sync.delay};
    for (std::size_t i = fragment.at; i < fragment.at + fragment.values; ++i) {
      float mean = 0;
      for (const auto& model : models) {
        const float d = agreed[i] - model->network.parameters()[i];
        mean = model == models[0] ? d : mean + d;
      }
      pending->mean.push_back(mean * (1.0f / static_cast<float>(ranks)));
    }
    if (run.sync.delay == 0) arrive();
  }
  std::vector<std::vector<float>> out;
  for (const auto& model : models) {
    out.push_back(values(model->network.parameters()));
    if (statistics) statistics->push_back(statistics_of(model->network));
  }
  return out;
}

TEST(LocalStep, FollowsTheFormulas) {
  const std::vector<Overrides> variants{
      local,
      {"sync.kind=local_sgd", "sync.steps=5"},  // ends within a phase
      with(local, {"sync.reset_momentum=true", "optimizer.nesterov=true"}),
      {"sync.kind=local_sgd", "sync.steps=1", "sync.reset_momentum=true"},  // SGD without momentum
      {"sync.kind=local_sgd", "sync.steps=3", "sync.warmup=constant", "sync.warmup_epochs=1",
       "sync.reset_momentum=true"},
      with(local,
           {"sync.warmup=exponential", "sync.warmup_epochs=1", "sync.steps=4", "optimizer.weight_decay=0.1"}),
      {"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1"},
      {"sync.kind=block_momentum", "sync.steps=3", "sync.momentum=0.5", "sync.rate=0.7"},
      {"sync.kind=block_momentum", "sync.steps=3", "sync.momentum=0.9", "sync.rate=0.7", "sync.nesterov=true",
       "optimizer={kind: adamw}"},
      {"sync.kind=local_sgd", "sync.steps=4", "sync.fragments=2", "sync.reset_momentum=true"},
      {"sync.kind=local_sgd", "sync.steps=3", "sync.fragments=3", "optimizer={kind: adamw}"},
      {"sync.kind=block_momentum", "sync.steps=5", "sync.rate=0.7", "sync.nesterov=true", "sync.fragments=5"},
      with(local, {"sync.delay=1", "sync.reset_momentum=true"}),
      with(local, {"sync.delay=2", "sync.mix=0"}),
      {"sync.kind=local_sgd", "sync.steps=4", "sync.fragments=2", "sync.delay=1", "sync.mix=0.25"},
      {"sync.kind=block_momentum", "sync.steps=6", "sync.rate=0.7", "sync.nesterov=true", "sync.fragments=2",
       "sync.delay=2", "optimizer={kind: adamw}"}};
  for (const Overrides& variant : variants)
    for (const char* collective : {"reduce_broadcast", "allreduce"})
      for (const int ranks : {2, 3, 4}) {
        const RunConfig run = small_run(with({"exchange.codec=none", "optimizer.momentum=0.5",
                                              std::string("exchange.collective=") + collective},
                                             variant));
        const auto got = trained(run, ranks), expected = reference(run, ranks);
        for (std::size_t r = 0; r < got.size(); ++r)
          EXPECT_LT(worst_difference(got[r], expected[r]), 1e-6)
              << variant.back() << ", " << collective << ", " << ranks << " ranks";
      }
}

TEST(LocalStep, OneLocalStepIsSynchronousSgd) {
  for (const int ranks : {1, 2, 3, 4}) {
    const RunConfig every_step = small_run({"exchange.codec=none"});
    RunConfig forced = small_run({"exchange.codec=none", "sync.kind=local_sgd", "sync.steps=1"});
    EXPECT_EQ(trained(forced, ranks), trained(every_step, ranks)) << "the same bytes";
    forced.sync.force_differences = true;
    const auto got = trained(forced, ranks), expected = trained(every_step, ranks);
    EXPECT_LT(worst_difference(got[0], expected[0]), 1e-6) << ranks;
    EXPECT_EQ(got[0] == expected[0], ranks == 1) << "another way to round";
  }
}

TEST(LocalStep, BeyondTheRunEachRankTrainsAlone) {
  const RunConfig run = small_run(with(local, {"sync.steps=1000"}));
  for (const int ranks : {2, 3, 4}) {
    std::vector<std::vector<float>> statistics;
    const auto alone = reference(run, ranks, &statistics);
    const auto count = static_cast<std::size_t>(ranks);
    run_thread_ranks(ranks, [&](Transport& transport) {
      const auto r = static_cast<std::size_t>(transport.rank());
      Rank rank(run, transport);
      rank.train(0, steps);
      EXPECT_EQ(rank.weights(), alone[r]);
      EXPECT_EQ(statistics_of(rank.model.network), statistics[r]);
      EXPECT_NE(statistics[r], statistics[(r + 1) % count]) << "of its own share of the batches";
      EXPECT_FALSE(rank.step->is_synchronised());
      EXPECT_TRUE(rank.step->replicas_equal()) << "of the weights that they started with";
      const AveragedWeights average(transport, rank.model.network);
      for (std::size_t i = 0; i < alone[0].size(); ++i) {
        float sum = alone[0][i];
        for (std::size_t k = 1; k < count; ++k) sum += alone[k][i];
        EXPECT_EQ(average.values()[i], sum * (1.0f / static_cast<float>(ranks)));
      }
      // The stripes of the others, and its own one to each of them.
      const std::size_t n = alone[0].size(), mine = n * (r + 1) / count - n * r / count;
      EXPECT_EQ(average.bytes_sent(), 4 * (n - mine + (count - 1) * mine));
      const AveragedWeights::Installed installed(average, rank.model.network);
      EXPECT_EQ(rank.weights(), values(average.values()));
    });
  }
}

TEST(LocalStep, AnAverageIsThereForAWhile) {
  const RunConfig run = small_run(with(local, {"sync.steps=1000"}));
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.train(0, 2);
    const std::vector<float> before = rank.weights();
    const AveragedWeights average(transport, rank.model.network);
    { const AveragedWeights::Installed installed(average, rank.model.network); }
    EXPECT_EQ(rank.weights(), before);
  });
}

TEST(LocalStep, ReplicasAreEqualAfterEachSynchronisation) {
  for (const char* codec :
       {"none", "onebit", "{kind: qsgd, bits: 4, bucket: 64}", "sign", "{kind: sign, error_feedback: false}",
        "{kind: topk, density: 0.1}", "dynamic8", "mx"})
    for (const int ranks : {2, 3, 4}) {
      const RunConfig run = small_run(with(local, {std::string("exchange.codec=") + codec}));
      std::vector<std::vector<std::vector<float>>> after(static_cast<std::size_t>(ranks));
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank rank(run, transport);
        for (std::int64_t s = 0; s < steps; ++s) {
          rank.train(s, s + 1);
          EXPECT_EQ(rank.step->is_synchronised(), s % 3 == 2);
          EXPECT_TRUE(rank.step->replicas_equal());
          after[static_cast<std::size_t>(transport.rank())].push_back(rank.weights());
        }
      });
      for (std::size_t s = 0; s < steps; ++s)
        for (std::size_t r = 1; r < after.size(); ++r)
          EXPECT_EQ(after[r][s] == after[0][s], s % 3 == 2) << codec << ", step " << s;
    }
}

TEST(LocalStep, SendsOnlyWhenItSynchronises) {
  const auto sent = [](const Overrides& overrides) {
    const RunConfig run = small_run(overrides);
    StepMetrics out;
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(run, transport);
      rank.train(0, steps);
      const StepMetrics mine = rank.step->take({});
      if (transport.rank() == 0) out = mine;
    });
    return out;
  };
  const StepMetrics every = sent({}), third = sent(local);
  EXPECT_GT(every.bytes_sent, 0u);
  EXPECT_EQ(third.bytes_sent * 3, every.bytes_sent);
  EXPECT_EQ(third.bytes_fp32, every.bytes_fp32);
  EXPECT_EQ(third.exchanges, 4);
  EXPECT_EQ(every.exchanges, 12);
  EXPECT_EQ(third.bytes_average, 0u) << "no distance was asked for";
  EXPECT_EQ(third.distance.change, 0);
}

/// With any codec, from the ranks' exact mean. Just before they synchronise, ranks have the weights of a run
/// that does not.
TEST(LocalStep, MeasuresHowFarReplicasAreApart) {
  const auto squares = [](const std::vector<float>& a, const std::vector<float>& b, double of_b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      sum += std::pow(static_cast<double>(a[i]) - of_b * static_cast<double>(b[i]), 2);
    return sum;
  };
  for (const int ranks : {1, 2}) {
    std::vector<std::vector<float>> before(static_cast<std::size_t>(ranks));
    std::vector<float> start;
    run_thread_ranks(ranks, [&](Transport& transport) {
      Rank rank(small_run(with(local, {"sync.steps=1000"})), transport);
      if (transport.rank() == 0) start = rank.weights();
      rank.train(0, 3);
      before[static_cast<std::size_t>(transport.rank())] = rank.weights();
    });
    std::vector<float> moved(start.size());  // the mean, less the start
    for (std::size_t i = 0; i < start.size(); ++i)
      moved[i] = (before[0][i] - start[i] + before.back()[i] - start[i]) / 2;
    const double apart = squares(before[0], before.back(), 1) / 4, change = squares(moved, start, 0);
    EXPECT_EQ(apart > 0, ranks == 2);
    for (const char* codec : {"none", "sign", "{kind: qsgd, bits: 2, bucket: 64}"}) {
      const RunConfig run = small_run(with(local, {std::string("exchange.codec=") + codec}));
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank rank(run, transport);
        rank.step->measure_distance();
        rank.train(0, 2);
        EXPECT_EQ(rank.step->take({}).distance.change, 0) << "nothing was synchronised";
        rank.train(2, 3);
        const StepMetrics m = rank.step->take({});
        EXPECT_NEAR(m.distance.deviation, apart, 1e-4 * apart) << codec;
        EXPECT_NEAR(m.distance.change, change, 1e-4 * change) << codec;
        EXPECT_EQ(m.bytes_average, ranks == 2 ? 4 * start.size() : 0);
        rank.train(3, 6);
        EXPECT_EQ(rank.step->take({}).distance.change, 0) << "it was not asked for";
      });
    }
  }
}

TEST(LocalStep, PostLocalIsSynchronousUntilThen) {
  const RunConfig every_step = small_run();
  const RunConfig post = small_run({"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1"});
  run_thread_ranks(2, [&](Transport& transport) {
    Rank one(every_step, transport), two(post, transport);
    one.train(0, per_epoch);
    two.train(0, per_epoch);
    EXPECT_EQ(two.weights(), one.weights());
    EXPECT_TRUE(two.step->has_equal_momentum());
    EXPECT_FALSE(two.step->sync_position().started);
    one.train(per_epoch, per_epoch + 1);
    two.train(per_epoch, per_epoch + 1);
    EXPECT_NE(two.weights(), one.weights());
    EXPECT_EQ(two.step->sync_position(), (SyncPosition{true, 1}));
    two.train(per_epoch + 1, per_epoch + 2);
    EXPECT_TRUE(two.step->is_synchronised());
  });
}

/// Residuals of gradients become what a step of plain SGD makes of them. Other steps are not in proportion to
/// the gradient.
TEST(LocalStep, ResidualsOfGradientsBecomeThoseOfChanges) {
  const auto scaled = [](std::vector<std::vector<float>> residuals, float factor) {
    for (std::vector<float>& tensor : residuals)
      for (float& value : tensor) value *= factor;
    return residuals;
  };
  const auto rate = static_cast<float>(rate_at(per_epoch));
  for (const auto& [optimizer, factor] :
       {std::pair{"optimizer={momentum: 0.5, nesterov: true}", rate},
        std::pair{"optimizer={kind: lars}", 0.0f}, std::pair{"optimizer={kind: adam}", 0.0f},
        std::pair{"optimizer={clip_norm: 1}", 0.0f}}) {
    const RunConfig run = small_run(
        {"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1", "exchange.codec=sign", optimizer});
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(run, transport);
      rank.train(0, per_epoch);
      const ExchangeState before = rank.step->state();
      const auto is_zero = [](float x) { return x == 0; };
      EXPECT_FALSE(std::ranges::all_of(before.round1[0], is_zero));
      rank.train(per_epoch, per_epoch + 1);
      EXPECT_EQ(rank.step->state().round1, scaled(before.round1, factor)) << optimizer;
      EXPECT_EQ(rank.step->state().round2, scaled(before.round2, factor)) << optimizer;
    });
  }
}

/// What any_exchange() says against what the ranks do, from the start of a run or from later on.
TEST(LocalStep, SaysWhetherAllRanksExchangeAnything) {
  const Overrides variants[] = {
      {},
      {"sync.kind=local_sgd", "sync.steps=5"},
      {"sync.kind=local_sgd", "sync.steps=100", "sync.warmup=exponential", "sync.warmup_epochs=2"},
      {"sync.kind=local_sgd", "sync.steps=100", "sync.warmup=linear", "sync.warmup_epochs=2"},
      {"sync.kind=local_sgd", "sync.steps=12", "sync.fragments=4"},
      {"sync.kind=post_local_sgd", "sync.steps=100", "sync.from=1"},
      {"sync.kind=block_momentum", "sync.steps=7"},
      streamed,
      hierarchical};
  for (const Overrides& variant : variants) {
    const RunConfig run = small_run(variant);
    for (const std::int64_t begin : {0, 2, 5, 7})
      for (const std::int64_t end : {1, 3, 6, 8, 12}) {
        if (end <= begin) continue;
        run_thread_ranks(4, [&, begin = begin, end = end](Transport& transport) {
          Rank rank(run, transport);
          rank.train(0, begin);
          rank.step->check_finite();
          rank.step->take({});
          const SyncPosition at = rank.step->sync_position();
          rank.train(begin, end);
          rank.step->check_finite();
          const StepMetrics found = rank.step->take({});
          EXPECT_EQ(any_exchange(run.sync, run.schedule, begin, end, begin / per_epoch, begin % per_epoch,
                                 per_epoch, at),
                    found.exchanges > found.block_exchanges)
              << (variant.empty() ? "" : variant[0]) << " from " << begin << " to " << end;
        });
      }
  }
}

TEST(LocalStep, WarnsOfWhatWillNotBe) {
  const auto warnings = [](const Overrides& overrides) {
    const RunConfig run = small_run(overrides);
    const CapturedLog log;
    run_thread_ranks(2, [&](Transport& transport) { const Rank rank(run, transport); });
    return log.text();
  };
  const Overrides post{"sync.kind=post_local_sgd", "sync.steps=2", "train.epochs=3"};
  EXPECT_EQ(warnings(with(post, {"sync.from=2"})), "");
  EXPECT_THAT(warnings(with(post, {"sync.from=3"})),
              ::testing::HasSubstr("sync.from: the run of 3 epochs ends before its steps are local"));
  EXPECT_EQ(warnings(with(hierarchical, {"sync.ranks_per_block=1"})), "");
  EXPECT_THAT(warnings(with(hierarchical, {"sync.block_steps=1"})),
              ::testing::HasSubstr("sync.block_steps: with 1 each synchronisation is of all ranks"));
  EXPECT_THAT(warnings(with(hierarchical, {"sync.ranks_per_block=node"})),
              ::testing::HasSubstr("sync.ranks_per_block: all 2 ranks are one block"));
}

/// Ranks that train on the same data differ by their noise alone, once they take local steps.
TEST(LocalStep, RanksDrawTheirOwnNoise) {
  const RunConfig run = small_run({"sync.kind=post_local_sgd", "sync.steps=3", "sync.from=1",
                                   "optimizer.noise=0.1", "exchange.codec=none"});
  std::vector<std::vector<float>> before(2), after(2);
  run_thread_ranks(2, [&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    Rank rank(run, transport);
    rank.loader = small_loader(run, samples, 0, 2);
    rank.train(0, per_epoch);
    before[r] = rank.weights();
    rank.train(per_epoch, per_epoch + 1);
    after[r] = rank.weights();
  });
  EXPECT_EQ(before[0], before[1]) << "of the mean gradient";
  EXPECT_NE(after[0], after[1]);
}

TEST(LocalStep, ReplicasThatDifferAreFound) {
  for (const Overrides& variant : {local, hierarchical}) {
    const RunConfig run = small_run(variant);
    run_thread_ranks(4, [&](Transport& transport) {
      Rank rank(run, transport);
      rank.train(0, 6);
      EXPECT_TRUE(rank.step->replicas_equal());
      if (transport.rank() == 3) rank.model.network.parameters()[0] += 1;
      EXPECT_FALSE(rank.step->replicas_equal());
    });
  }
}

TEST(LocalStep, NonFiniteChangesStopAllRanks) {
  struct Case {
    Overrides overrides;
    const char* step;  // whose change it is: the first one in which a tensor with such a value has its turn
    std::int64_t found = 3;
  };
  for (const auto& [variant, step, found] :
       {Case{local, "step 2"}, Case{with(local, {"sync.fragments=3"}), "step 1"},
        Case{with(local, {"sync.delay=2"}), "step 2", 5}}) {
    const RunConfig run = small_run(variant);
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(run, transport);
      rank.train(0, 1);
      if (transport.rank() == 1)
        rank.model.network.parameters()[static_cast<std::size_t>(rank.model.network.tensors()[0].offset)] =
            std::numeric_limits<float>::infinity();
      try {
        rank.train(1, found - 1);
        rank.step->take({});
        rank.train(found - 1, found);
        ADD_FAILURE() << "no error";
      } catch (const NonFiniteError& e) {
        EXPECT_THAT(e.what(), ::testing::AllOf(::testing::StartsWith(std::string(step) + ": the change of '"),
                                               ::testing::HasSubstr("on rank 1 holds a NaN or an infinity")));
      }
    });
  }
}

}  // namespace
}  // namespace lpsgd
