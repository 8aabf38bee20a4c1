// Local SGD and its relatives, against the formulas written out, and through checkpoints.
#include "trainer/local_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "tests/comm/captured_log.h"
#include "tests/trainer/small_run.h"
#include "trainer/averaged_weights.h"
#include "trainer/batch_inputs.h"
#include "trainer/run_checkpoints.h"

namespace lpsgd {
namespace {

constexpr std::int64_t samples = 72, per_epoch = 6;  // six batches of 12
constexpr std::int64_t steps = 12;

using Overrides = std::vector<std::string>;

Overrides with(Overrides first, const Overrides& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

double rate_at(std::int64_t step) {
  return 0.1 / static_cast<double>(step + 1);
}

std::int64_t interval_at(const RunConfig& run, std::int64_t step) {
  return local_steps(run.sync, run.schedule, step / per_epoch, step % per_epoch, per_epoch);
}

/// A rank that trains and saves.
struct Rank {
  Rank(const RunConfig& config, Transport& transport, const std::string& folder = "unused")
      : run(config),
        model(run, transport.rank(), transport.size()),
        loader(small_loader(run, samples, transport.rank(), transport.size())),
        step(make_step(run, model.codecs, model.network, model.optimizer, transport, nullptr)),
        checkpoints(folder, run, {per_epoch, samples, {}}, model.codecs, transport, model.network, *step) {}

  void train(std::int64_t from, std::int64_t to) {
    for (std::int64_t s = from; s < to; ++s) {
      if (s % per_epoch == 0 || s == from) loader->start(s / per_epoch, s % per_epoch);
      step->set_interval(interval_at(run, s));
      step->run(*loader, s, rate_at(s));
    }
  }
  std::vector<float> weights() { return values(model.network.parameters()); }
  std::vector<std::vector<float>> state() {
    std::vector<std::vector<float>> out{weights()};
    for (const NamedArena& arena : step->arenas()) out.push_back(values(arena.values));
    for (const NamedBuffer& b : model.network.buffers()) out.push_back(values(b.values));
    const ExchangeState residuals = step->state();
    out.insert(out.end(), residuals.round1.begin(), residuals.round1.end());
    out.insert(out.end(), residuals.round2.begin(), residuals.round2.end());
    return out;
  }

  const RunConfig run;
  SmallModel model;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<SynchronousStep> step;
  RunCheckpoints checkpoints;
};

template <class Part>
void average(const std::vector<std::unique_ptr<SmallModel>>& models, const Part& part) {
  std::vector<float> mean = values(part(*models[0]));
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t r = 1; r < models.size(); ++r) mean[i] += part(*models[r])[i];
    mean[i] *= 1.0f / static_cast<float>(models.size());
  }
  for (const auto& model : models) std::ranges::copy(mean, part(*model).begin());
}

/// The weights of each rank after `steps` steps with codec none: a loop over the ranks' models.
std::vector<std::vector<float>> reference(const RunConfig& run, int ranks) {
  std::vector<std::unique_ptr<SmallModel>> models;
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int r = 0; r < ranks; ++r) {
    models.push_back(std::make_unique<SmallModel>(run, r, ranks));
    loaders.push_back(small_loader(run, samples, r, ranks));
  }
  std::vector<float> agreed = values(models[0]->network.parameters()), u(agreed.size());
  std::int64_t since = 0;
  bool started = false;
  for (std::int64_t s = 0; s < steps; ++s) {
    for (std::size_t r = 0; r < models.size(); ++r) {
      if (s % per_epoch == 0) loaders[r]->start(s / per_epoch);
      Network& network = models[r]->network;
      network.forward_train(samples_of(loaders[r]->next(), 1), s);
      network.backward({});
    }
    started = started || interval_at(run, s) > 1 || run.sync.kind == SyncKind::block_momentum;
    if (!started) average(models, [](SmallModel& m) { return m.network.gradients(); });
    for (const auto& model : models) {
      model->optimizer.set_rate(rate_at(s), s);
      model->optimizer.step(model->network.parameters(), model->network.gradients());
    }
    if (!started) agreed = values(models[0]->network.parameters());
    if (!started) continue;
    if (++since < interval_at(run, s)) continue;
    since = 0;
    const bool block = run.sync.kind == SyncKind::block_momentum;
    const auto mu = static_cast<float>(block ? run.sync.momentum : 0);
    const auto rate = static_cast<float>(block ? run.sync.rate : 1);
    for (std::size_t i = 0; i < agreed.size(); ++i) {
      float mean = 0;
      for (const auto& model : models) {
        const float d = agreed[i] - model->network.parameters()[i];
        mean = model == models[0] ? d : mean + d;
      }
      mean *= 1.0f / static_cast<float>(ranks);
      u[i] = mu * u[i] + mean;
      agreed[i] -= rate * (run.sync.nesterov ? mean + mu * u[i] : u[i]);
    }
    for (const auto& model : models) {
      std::ranges::copy(agreed, model->network.parameters().begin());
      if (run.sync.reset_momentum) std::ranges::fill(model->optimizer.momentum(), 0.0f);
    }
  }
  std::vector<std::vector<float>> out;
  for (const auto& model : models) out.push_back(values(model->network.parameters()));
  return out;
}

std::vector<std::vector<float>> trained(const RunConfig& run, int ranks) {
  std::vector<std::vector<float>> out(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.train(0, steps);
    out[static_cast<std::size_t>(transport.rank())] = rank.weights();
  });
  return out;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

const Overrides local{"sync.kind=local_sgd", "sync.steps=3"};

TEST(LocalStep, FollowsTheFormulas) {
  const std::vector<Overrides> variants{
      local,
      {"sync.kind=local_sgd", "sync.steps=5"},  // ends within a phase
      with(local, {"sync.reset_momentum=true", "optimizer.nesterov=true"}),
      with(local,
           {"sync.warmup=exponential", "sync.warmup_epochs=1", "sync.steps=4", "optimizer.weight_decay=0.1"}),
      {"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1"},
      {"sync.kind=block_momentum", "sync.steps=3", "sync.momentum=0.5", "sync.rate=0.7"},
      {"sync.kind=block_momentum", "sync.steps=3", "sync.momentum=0.9", "sync.rate=0.7", "sync.nesterov=true",
       "optimizer={kind: adamw}"}};
  for (const Overrides& variant : variants)
    for (const int ranks : {2, 3, 4}) {
      const RunConfig run = small_run(with({"exchange.codec=none", "optimizer.momentum=0.5"}, variant));
      const auto got = trained(run, ranks), expected = reference(run, ranks);
      for (std::size_t r = 0; r < got.size(); ++r)
        EXPECT_LT(worst_difference(got[r], expected[r]), 1e-6) << variant.back() << ", " << ranks << " ranks";
    }
}

TEST(LocalStep, OneLocalStepIsSynchronousSgd) {
  for (const int ranks : {1, 2, 3}) {
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
  const auto alone = reference(run, 3);
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.train(0, steps);
    EXPECT_EQ(rank.weights(), alone[static_cast<std::size_t>(transport.rank())]);
    EXPECT_FALSE(rank.step->is_synchronised());
    EXPECT_TRUE(rank.step->replicas_equal()) << "of the weights that they started with";
    const AveragedWeights average(transport, rank.model.network);
    for (std::size_t i = 0; i < alone[0].size(); ++i)
      EXPECT_EQ(average.values()[i], (alone[0][i] + alone[1][i] + alone[2][i]) * (1.0f / 3));
    EXPECT_EQ(average.bytes_sent(), 2 * 4 * alone[0].size());
    const AveragedWeights::Installed installed(average, rank.model.network);
    EXPECT_EQ(rank.weights(), values(average.values()));
  });
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
  for (const char* codec : {"none", "onebit", "{kind: qsgd, bits: 4, bucket: 64}", "sign",
                            "{kind: sign, error_feedback: false}", "{kind: topk, density: 0.1}", "dynamic8"})
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

const Overrides hierarchical{"sync.kind=hierarchical_local_sgd", "sync.steps=2", "sync.block_steps=3",
                             "sync.ranks_per_block=2"};

TEST(LocalStep, BlocksOfWhichEachSynchronisationIsOfAllAreFlat) {
  const auto flat = trained(small_run({"sync.kind=local_sgd", "sync.steps=2"}), 4);
  EXPECT_EQ(trained(small_run(with(hierarchical, {"sync.block_steps=1"})), 4), flat);
  EXPECT_NE(trained(small_run(hierarchical), 4), flat);
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
  const RunConfig run = small_run(local);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.train(0, 1);
    if (transport.rank() == 1)
      rank.model.network.parameters()[static_cast<std::size_t>(rank.model.network.tensors()[0].offset)] =
          std::numeric_limits<float>::infinity();
    try {
      rank.train(1, 3);
      ADD_FAILURE() << "no error";
    } catch (const NonFiniteError& e) {
      EXPECT_THAT(e.what(), ::testing::AllOf(::testing::StartsWith("step 2: the change of '"),
                                             ::testing::HasSubstr("on rank 1 holds a NaN or an infinity")));
    }
  });
}

void save(Rank& rank, Transport& transport, std::int64_t step) {
  std::optional<AveragedWeights> average;
  if (!rank.step->is_synchronised()) average.emplace(transport, rank.model.network);
  rank.checkpoints.begin("step-000007", {.step = step, .epoch = step / per_epoch, .batch = step % per_epoch},
                         {}, 0.1, average ? &*average : nullptr);
  rank.checkpoints.finish();
}

TEST(LocalStep, ANonFiniteWeightIsSavedByNoneAndBlamedOnItsRank) {
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

TEST(LocalStep, AnAverageThatOverflowsIsNotSaved) {
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

/// Resumes in the middle of a phase.
TEST(LocalStep, GoesOnBitForBit) {
  for (const Overrides& variant :
       {with(local, {}), with(local, {"optimizer={kind: adam}", "exchange.codec=sign"}),
        Overrides{"sync.kind=block_momentum", "sync.steps=5", "sync.nesterov=true"},
        Overrides{"sync.kind=post_local_sgd", "sync.steps=4", "sync.from=1"}, hierarchical})
    for (const int ranks : {2, 4}) {
      const RunConfig run = small_run(variant);
      const TestFolder folder;
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank rank(run, transport, folder.path());
        rank.train(0, 7);
        EXPECT_FALSE(rank.step->is_synchronised());
        save(rank, transport, 7);
      });
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank whole(run, transport), resumed(run, transport);
        whole.train(0, steps);
        const Resumed at = resumed.checkpoints.restore(find_resume_point(folder.path()).value());
        EXPECT_FALSE(at.other_ranks);
        EXPECT_FALSE(resumed.step->is_synchronised());
        resumed.train(7, steps);
        EXPECT_EQ(resumed.state(), whole.state()) << variant.back();
      });
    }
}

/// Residuals of gradients then become residuals of changes, also if the run before had no `sync`.
TEST(LocalStep, GoesOnBitForBitWhereLocalStepsBegin) {
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

TEST(LocalStep, OtherRanksGoOnFromTheAverage) {
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

std::string error_of(const Overrides& overrides) {
  try {
    const RunConfig run = small_run(overrides);
    check_ranks(run, 4, false);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(LocalStep, ConfigurationIsChecked) {
  using ::testing::HasSubstr;
  EXPECT_EQ(error_of({}), "no error");
  EXPECT_THAT(error_of({"sync.steps=2"}),
              HasSubstr("sync.steps: is no key of every_step; allowed with it: kind"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd"}), HasSubstr("sync.kind: local_sgd needs sync.steps"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=0"}),
              HasSubstr("sync.steps: expected an integer"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=2", "sync.rate=2"}),
              HasSubstr("sync.rate: is no key"));
  EXPECT_THAT(error_of({"sync.kind=post_local_sgd", "sync.steps=2"}),
              HasSubstr("sync.from: first_decay needs"));
  EXPECT_EQ(error_of({"sync.kind=post_local_sgd", "sync.steps=2", "schedule.decay={2: 0.1}"}), "no error");
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=2", "sync.warmup=linear"}),
              HasSubstr("sync.warmup: needs both"));
  EXPECT_EQ(error_of(hierarchical), "no error");
  EXPECT_THAT(error_of(with(hierarchical, {"sync.ranks_per_block=3"})),
              HasSubstr("sync.ranks_per_block: 4 ranks cannot be divided into blocks of 3"));
  EXPECT_THAT(error_of(with(hierarchical, {"exchange.collective=allreduce", "exchange.codec=none"})),
              HasSubstr("sync.kind: hierarchical_local_sgd averages within blocks"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=2", "exchange.collective=simulated"}),
              HasSubstr("sync.kind: local steps need an exchange that averages"));
  for (const char* votes : {"exchange.codec={kind: sign, majority: true}",
                            "exchange.rules=[{kind: conv, codec: {kind: sign, majority: true}}]"}) {
    EXPECT_EQ(error_of({votes}), "no error");
    EXPECT_THAT(error_of(with(local, {votes})), HasSubstr("majority: true sends signs without a scale"));
  }
  EXPECT_EQ(error_of(with(local, {"sync.reset_momentum=true"})), "no error");
  for (const char* adam : {"optimizer={kind: adam}", "optimizer={kind: adamw}"})
    EXPECT_THAT(error_of(with(local, {adam, "sync.reset_momentum=true"})),
                HasSubstr("sync.reset_momentum: adam and adamw correct their moments"));
}

TEST(LocalStep, KeysWithoutAnEffectAreRefused) {
  using ::testing::HasSubstr;
  const auto expect = [](const Overrides& overrides, const char* error) {
    EXPECT_THAT(error_of(overrides), HasSubstr(error)) << overrides.back();
  };
  for (const char* key : {"momentum=0.9", "nesterov=false", "momentum_unit_gain=false"})
    expect({"optimizer={kind: adam}", std::string("optimizer.") + key},
           "adam and adamw have moments of their own");
  expect({"optimizer={kind: adam}", "schedule.momentum={1: 0.5}"},
         "schedule.momentum: adam and adamw have moments");
  for (const char* key : {"trust=0.1", "lars_exclude=[]"}) {
    expect({std::string("optimizer.") + key}, "is a key of kind lars");
    EXPECT_EQ(error_of({"optimizer.kind=lars", std::string("optimizer.") + key}), "no error");
  }
  for (const char* key : {"beta1=0.5", "beta2=0.5", "eps=0.1"}) {
    expect({std::string("optimizer.") + key}, "is a key of the kinds adam and adamw");
    EXPECT_EQ(error_of({"optimizer={kind: adamw}", std::string("optimizer.") + key}), "no error");
  }
  expect({"schedule.lr_batch_size=64"},
         "schedule.lr_batch_size: has a meaning with schedule.lr_scaling only");
  EXPECT_EQ(error_of({"schedule.lr_batch_size=64", "schedule.lr_scaling=sqrt"}), "no error");
  expect({"schedule.lr_scaling=linear", "schedule.warmup_from=0"}, "a warm-up starts from schedule.lr");
  EXPECT_EQ(error_of({"schedule.warmup_from=0"}), "no error");
}

/// config.yaml of a run can be given to another one.
TEST(LocalStep, ResolvedConfigurationsAreAccepted) {
  for (const Overrides& variant :
       {Overrides{}, with(local, {"optimizer={kind: adam}"}),
        with(hierarchical, {"optimizer.kind=lars", "schedule.lr_scaling=linear"})}) {
    const TestFolder folder;
    const std::string path = folder.path() + "/config.yaml", text = resolved_text(small_run(variant));
    write_file(path, text);
    EXPECT_EQ(resolved_text(load_run_config(path, {}, config::Environment::expand)), text);
  }
}

TEST(LocalStep, WarmUpsGrow) {
  ScheduleOptions schedule;
  schedule.decay = {{3, 0.1}};
  SyncOptions sync{.kind = SyncKind::local_sgd, .steps = 16, .warmup_epochs = 4};
  const auto at = [&](SyncWarmup warmup) {
    sync.warmup = warmup;
    std::vector<std::int64_t> out;
    for (std::int64_t half = 0; half < 10; ++half)
      out.push_back(local_steps(sync, schedule, half / 2, half % 2 * 5, 10));
    return out;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(at(SyncWarmup::none), Steps(10, 16));
  EXPECT_EQ(at(SyncWarmup::constant), (Steps{1, 1, 1, 1, 1, 1, 1, 1, 16, 16}));
  EXPECT_EQ(at(SyncWarmup::linear), (Steps{1, 2, 4, 6, 8, 10, 12, 14, 16, 16}));
  EXPECT_EQ(at(SyncWarmup::exponential), (Steps{1, 1, 2, 2, 4, 5, 8, 11, 16, 16}));
  const SyncOptions cube{
      .kind = SyncKind::local_sgd, .steps = 64, .warmup = SyncWarmup::exponential, .warmup_epochs = 3};
  EXPECT_EQ(local_steps(cube, schedule, 1, 0, 10), 4);
  EXPECT_EQ(local_steps(cube, schedule, 2, 0, 10), 16);
  const SyncOptions post{.kind = SyncKind::post_local_sgd, .steps = 8};
  EXPECT_EQ(local_steps(post, schedule, 2, 9, 10), 1);
  EXPECT_EQ(local_steps(post, schedule, 3, 0, 10), 8);
}

}  // namespace
}  // namespace lpsgd
