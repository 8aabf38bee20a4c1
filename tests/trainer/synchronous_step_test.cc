#include "trainer/synchronous_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/trainer/small_run.h"
#include "trainer/batch_inputs.h"

namespace lpsgd {
namespace {

constexpr std::int64_t samples = 48;  // four batches

/// A rank's model and the step that trains it.
struct Rank {
  Rank(const RunConfig& run, Transport& transport, Trace* trace = nullptr)
      : model(run, transport.rank(), transport.size()),
        loader(small_loader(run, samples, transport.rank(), transport.size())),
        step(run, model.codecs, model.network, model.optimizer, transport, trace) {
    loader->start(0);
  }
  std::vector<float> parameters() { return values(model.network.parameters()); }

  SmallModel model;
  std::unique_ptr<Loader> loader;
  SynchronousStep step;
};

/// The weights after some steps with codec none, without exchange or SynchronousStep: the networks of all
/// ranks one after the other, the mean of their gradients (docs/numerics.md), the update.
std::vector<float> reference(const RunConfig& run, int ranks, std::int64_t steps) {
  std::vector<std::unique_ptr<SmallModel>> models;
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int r = 0; r < ranks; ++r) {
    models.push_back(std::make_unique<SmallModel>(run, r, ranks));
    loaders.push_back(small_loader(run, samples, r, ranks));
    loaders.back()->start(0);
  }
  for (std::int64_t s = 0; s < steps; ++s) {
    std::vector<float> mean;
    for (int r = 0; r < ranks; ++r) {
      Network& network = models[static_cast<std::size_t>(r)]->network;
      const Batch batch = loaders[static_cast<std::size_t>(r)]->next();
      network.forward_train(samples_of(batch, 1), s);
      network.backward({});
      const std::span<const float> g = network.gradients();
      mean.resize(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) mean[i] = r == 0 ? g[i] : mean[i] + g[i];
    }
    for (float& x : mean) x *= 1.0f / static_cast<float>(ranks);
    for (auto& model : models) {
      model->optimizer.set_rate(0.1 / static_cast<double>(s + 1));
      model->optimizer.step(model->network.parameters(), mean);
    }
  }
  return values(models[0]->network.parameters());
}

TEST(SynchronousStep, WithoutACodecIsSgdOnTheMeanGradient) {
  for (const char* overlap : {"exchange.overlap=true", "exchange.overlap=false"}) {
    const RunConfig run = small_run({"exchange.codec=none", overlap});
    for (const int ranks : {1, 2, 3}) {
      const std::vector<float> expected = reference(run, ranks, 3);
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank rank(run, transport);
        for (std::int64_t s = 0; s < 3; ++s) rank.step.run(*rank.loader, s, 0.1 / static_cast<double>(s + 1));
        EXPECT_EQ(rank.parameters(), expected) << ranks << " ranks, " << overlap;
      });
    }
  }
}

TEST(SynchronousStep, ReplicasStayEqual) {
  const RunConfig run = small_run();
  std::vector<std::vector<float>> after(3);
  const std::vector<float> before = values(SmallModel(run, 0, 1).network.parameters());
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, transport);
    EXPECT_EQ(rank.parameters(), before);
    for (std::int64_t s = 0; s < 4; ++s) rank.step.run(*rank.loader, s, 0.1);
    after[static_cast<std::size_t>(transport.rank())] = rank.parameters();
  });
  EXPECT_NE(after[0], before);
  EXPECT_EQ(after[0], after[1]);
  EXPECT_EQ(after[0], after[2]);
}

TEST(SynchronousStep, TakesWhatStepsMeasured) {
  const RunConfig run = small_run({"metrics.codec_error=true"});
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, transport);
    const std::vector<TensorInfo>& tensors = rank.model.network.tensors();
    std::vector<CodingError> errors(tensors.size());
    for (std::int64_t s = 0; s < 2; ++s) rank.step.run(*rank.loader, s, 0.1);
    const StepMetrics m = rank.step.take(errors);
    EXPECT_EQ(m.steps, 2);
    EXPECT_EQ(m.batches.samples, 2 * 12 / 3);
    EXPECT_GT(m.batches.loss, 0);
    for (const double part :
         {m.seconds.data, m.seconds.forward, m.seconds.backward, m.seconds.exposed_comm, m.seconds.update})
      EXPECT_GT(part, 0);
    EXPECT_LE(m.seconds.exposed_codec, m.seconds.exposed_comm);
    EXPECT_GT(m.seconds.encode, 0);
    EXPECT_EQ(m.seconds.total, 0) << "is the epoch's";
    std::uint64_t encoded = 0, values = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      encoded += wire_bytes(tensors[t], rank.model.codecs[t], 3);
      values += static_cast<std::uint64_t>(tensors[t].elements);
      EXPECT_GT(errors[t].gradient, 0) << tensors[t].name;
      EXPECT_GT(errors[t].error, 0) << tensors[t].name;
    }
    double sent = 0;
    for (const double one : transport.all_gather(static_cast<double>(m.bytes_sent))) sent += one;
    EXPECT_EQ(sent, 2.0 * 2 * 2 * static_cast<double>(encoded));  // 2 steps, 2 (K - 1) copies each
    EXPECT_EQ(m.bytes_fp32, 2 * 2 * 2 * 4 * values);

    const StepMetrics rest = rank.step.take({});
    EXPECT_EQ(rest.steps, 0);
    EXPECT_EQ(rest.batches.samples, 0);
    EXPECT_EQ(rest.seconds.forward, 0);
    EXPECT_EQ(rest.bytes_sent, 0u);
    EXPECT_EQ(rest.bytes_fp32, 0u);
  });
}

TEST(SynchronousStep, StopsAllRanksAtANonFiniteGradient) {
  const RunConfig run = small_run();
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.step.run(*rank.loader, 0, 0.1);
    rank.step.check_finite();
    // fc.bias of rank 1 alone: its loss and with it all its gradients are no numbers.
    const TensorInfo& bias = rank.model.network.tensors().back();
    ASSERT_EQ(bias.name, "fc.bias");
    if (transport.rank() == 1)
      rank.model.network.parameters()[static_cast<std::size_t>(bias.offset)] =
          std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> before = rank.parameters();
    try {
      rank.step.run(*rank.loader, 1, 0.1);
      ADD_FAILURE() << "no error on rank " << transport.rank();
    } catch (const NonFiniteError& e) {
      EXPECT_STREQ(e.what(), "step 1: the gradient of 'conv.weight' on rank 1 holds a NaN or an infinity");
    }
    const std::vector<float> after = rank.parameters();
    if (transport.rank() != 1) {
      EXPECT_EQ(after, before) << "stopped before the update";
    }
  });
}

TEST(SynchronousStep, NonFiniteText) {
  const std::vector<TensorInfo> tensors{{"a", TensorKind::bias, {1}, 1, 0},
                                        {"b", TensorKind::bias, {1}, 1, 1}};
  EXPECT_EQ(text({.tensor = 1, .rank = 2, .step = 9}, tensors),
            "step 9: the gradient of 'b' on rank 2 holds a NaN or an infinity");
  EXPECT_EQ(text({.tensor = 0, .rank = -1, .step = 9}, tensors),
            "step 9: the mean gradient of 'a' holds a NaN or an infinity");
}

TEST(SynchronousStep, ResidualsGoOutAndIn) {
  const RunConfig run = small_run();
  // Two steps in one object, or each in an object of its own that gets the other's state.
  std::vector<float> whole, parts;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport);
    for (std::int64_t s = 0; s < 2; ++s) rank.step.run(*rank.loader, s, 0.1);
    if (transport.rank() == 0) whole = rank.parameters();
  });
  run_thread_ranks(2, [&](Transport& transport) {
    Rank first(run, transport), second(run, transport);
    first.step.run(*first.loader, 0, 0.1);
    std::ranges::copy(first.model.network.parameters(), second.model.network.parameters().begin());
    std::ranges::copy(first.model.optimizer.momentum(), second.model.optimizer.momentum().begin());
    second.step.set_state(first.step.state());
    second.loader->start(0, 1);
    second.step.run(*second.loader, 1, 0.1);
    if (transport.rank() == 0) parts = second.parameters();
  });
  EXPECT_EQ(whole, parts);
}

}  // namespace
}  // namespace lpsgd
