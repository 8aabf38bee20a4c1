#include "trainer/evaluate.h"

#include <gtest/gtest.h>

#include "tests/trainer/small_run.h"
#include "trainer/epoch_sums.h"

namespace lpsgd {
namespace {

/// The running statistics of `network`, each filled with a number of its own: first, first + 1, ...
void fill_buffers(Network& network, float first) {
  for (const NamedBuffer& b : network.buffers()) std::ranges::fill(b.values, first++);
}

TEST(AveragedBuffers, AreTheMeanOverRanks) {
  const RunConfig run = small_run();
  run_thread_ranks(3, [&](Transport& transport) {
    SmallModel model(run, transport.rank(), 3);
    fill_buffers(model.network, static_cast<float>(10 + 3 * transport.rank()));  // 10, 13, 16
    const AveragedBuffers averaged(transport, model.network);
    ASSERT_EQ(averaged.buffers().size(), model.network.buffers().size());
    float expected = 13;
    for (std::size_t b = 0; b < averaged.buffers().size(); ++b, ++expected) {
      EXPECT_EQ(averaged.buffers()[b].name, model.network.buffers()[b].name);
      for (const float x : averaged.buffers()[b].values) EXPECT_FLOAT_EQ(x, expected);
    }
    EXPECT_EQ(model.network.buffers()[0].values[0], static_cast<float>(10 + 3 * transport.rank()))
        << "each rank keeps its own";
  });
}

TEST(Evaluate, CountsEachSampleOnceWhateverTheRanks) {
  const RunConfig run = small_run();
  constexpr std::int64_t samples = 31;  // neither batches nor ranks divide it
  const auto evaluated = [&](int ranks) {
    BatchMetrics result;
    run_thread_ranks(ranks, [&](Transport& transport) {
      SmallModel model(run, transport.rank(), ranks);
      const auto loader = small_loader(run, samples, transport.rank(), ranks, false);
      const AveragedBuffers averaged(transport, model.network);
      const BatchMetrics all =
          sum(of_all_ranks(transport, evaluate(model.network, *loader, averaged.buffers())));
      if (transport.rank() == 0) result = all;
    });
    return result;
  };
  const BatchMetrics one = evaluated(1);
  EXPECT_EQ(one.samples, samples);
  EXPECT_GT(one.loss, 0);
  for (const int ranks : {2, 3}) {
    const BatchMetrics all = evaluated(ranks);
    EXPECT_EQ(all.samples, samples);
    EXPECT_EQ(all.top1, one.top1);
    EXPECT_NEAR(all.loss, one.loss, 1e-5 * one.loss);
  }
}

TEST(Evaluate, UsesTheGivenStatisticsAndRestoresItsOwn) {
  const RunConfig run = small_run();
  run_thread_ranks(1, [&](Transport& transport) {
    SmallModel model(run, 0, 1);
    const auto loader = small_loader(run, 24, 0, 1, false);
    const AveragedBuffers initial(transport, model.network);
    const double expected = evaluate(model.network, *loader, initial.buffers()).loss;
    fill_buffers(model.network, 40);
    EXPECT_EQ(evaluate(model.network, *loader, initial.buffers()).loss, expected);
    EXPECT_EQ(model.network.buffers()[0].values[0], 40);
    EXPECT_EQ(model.network.buffers()[1].values[0], 41);
    const AveragedBuffers own(transport, model.network);
    EXPECT_NE(evaluate(model.network, *loader, own.buffers()).loss, expected);
  });
}

}  // namespace
}  // namespace lpsgd
