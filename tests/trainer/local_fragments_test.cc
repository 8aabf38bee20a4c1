// Groups of tensors that are synchronised in turn, while ranks go on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/link.h"
#include "core/error.h"
#include "tests/trainer/local_run.h"
#include "trainer/averaged_weights.h"

namespace lpsgd {
namespace {

using namespace local_run;

TEST(LocalStep, FragmentsAreBalancedAndLeaveNoTensorOut) {
  const RunConfig run = small_run();
  const SmallModel model(run, 0, 1);
  const std::vector<TensorInfo>& tensors = model.network.tensors();
  ASSERT_EQ(tensors.size(), 5u) << "a convolution of 108, a norm, a dense layer of 192";
  const std::size_t arena = 1000;
  const auto ends = [&](std::int64_t count) {
    std::vector<std::size_t> out;
    std::size_t first = 0, at = 0;
    for (const Fragment& fragment : fragments_of(tensors, count, arena)) {
      EXPECT_EQ(fragment.first, first);
      EXPECT_EQ(fragment.at, at);
      EXPECT_EQ(static_cast<std::size_t>(tensors[first].offset), at);
      first = fragment.last;
      at += fragment.values;
      out.push_back(fragment.last);
    }
    EXPECT_EQ(at, arena);
    return out;
  };
  using Ends = std::vector<std::size_t>;
  EXPECT_EQ(ends(1), Ends{5});
  EXPECT_EQ(ends(2), (Ends{3, 5}));
  EXPECT_EQ(ends(3), (Ends{1, 3, 5}));
  EXPECT_EQ(ends(5), (Ends{1, 2, 3, 4, 5}));
  EXPECT_THROW(ends(6), ConfigError);
}

/// A codec's bytes of a tensor depend on its number and the step, not on the fragments.
TEST(LocalStep, FragmentsTakeTurns) {
  for (const char* codec : {"none", "onebit", "{kind: qsgd, bits: 4, bucket: 64}"})
    for (const int ranks : {2, 3}) {
      const Overrides common{"sync.kind=local_sgd", "sync.steps=2", std::string("exchange.codec=") + codec};
      const RunConfig run = small_run(with(common, {"sync.fragments=2", "metrics.codec_error=true"})),
                      whole = small_run(common);
      std::vector<std::vector<std::vector<float>>> after(static_cast<std::size_t>(ranks));
      Fragment first, second;
      run_thread_ranks(ranks, [&](Transport& transport) {
        Rank rank(run, transport), flat(whole, transport);
        const std::vector<Fragment> fragments =
            fragments_of(rank.model.network.tensors(), 2, rank.weights().size());
        if (transport.rank() == 0) first = fragments[0], second = fragments[1];
        for (std::int64_t s = 0; s < steps; ++s) {
          rank.train(s, s + 1);
          EXPECT_FALSE(rank.step->is_synchronised());
          EXPECT_TRUE(rank.step->replicas_equal());
          after[static_cast<std::size_t>(transport.rank())].push_back(rank.weights());
        }
        std::vector<CodingError> errors(rank.model.codecs.size());
        const StepMetrics m = rank.step->take(errors);
        EXPECT_EQ(m.exchanges, steps);
        for (const CodingError& error : errors) EXPECT_EQ(error.exchanges, steps / 2) << "its own";
        flat.train(0, steps);
        EXPECT_EQ(m.bytes_sent, flat.step->take({}).bytes_sent) << "of each tensor one in two steps";
      });
      const auto part = [](const std::vector<float>& of, const Fragment& fragment) {
        const auto at = of.begin() + static_cast<std::ptrdiff_t>(fragment.at);
        return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(fragment.values));
      };
      for (std::size_t s = 0; s < steps; ++s)
        for (std::size_t r = 1; r < after.size(); ++r) {
          EXPECT_EQ(part(after[r][s], first) == part(after[0][s], first), s % 2 == 0) << codec << ", " << s;
          EXPECT_EQ(part(after[r][s], second) == part(after[0][s], second), s % 2 == 1) << codec << ", " << s;
        }
    }
}

/// Whoever makes a collective waits for what is on its way; the mean is applied when it is due all the same.
TEST(LocalStep, CollectivesOnTheWayChangeNothing) {
  for (const char* codec : {"none", "onebit", "{kind: qsgd, bits: 4, bucket: 64}"})
    for (const bool linked : {false, true})
      for (const Overrides& variant : {streamed, with(local, {"sync.delay=2"})}) {
        const RunConfig run = small_run(with(variant, {std::string("exchange.codec=") + codec}));
        const RunConfig whole =
            small_run({"sync.kind=local_sgd", fmt::format("sync.steps={}", run.sync.steps),
                       std::string("exchange.codec=") + codec});
        run_thread_ranks(3, [&](Transport& threads) {
          LinkSpec slow;
          slow.latency = 2e-3;
          const std::unique_ptr<Transport> link = make_linked_transport(threads, slow);
          Transport& transport = linked ? *link : threads;
          std::vector<std::vector<std::vector<float>>> states;
          std::uint64_t sent[2] = {};
          for (const bool collectives : {false, true}) {
            Rank rank(run, transport);
            for (std::int64_t s = 0; s < steps; ++s) {
              rank.train(s, s + 1);
              sent[collectives] += rank.step->take({}).bytes_sent;
              if (!collectives) continue;
              if (s % 4 == 0) transport.barrier();
              if (s % 4 == 1) {
                EXPECT_TRUE(rank.step->replicas_equal()) << s;
              }
              if (s % 4 == 2) {
                EXPECT_GT(AveragedWeights(transport, rank.model.network).bytes_sent(), 0u);
              }
              EXPECT_FALSE(rank.step->is_synchronised());
            }
            rank.step->check_finite();
            sent[collectives] += rank.step->take({}).bytes_sent;
            EXPECT_TRUE(rank.step->sync_position().has_pending());
            states.push_back(rank.state());
          }
          EXPECT_EQ(states[0], states[1]) << codec;
          EXPECT_EQ(sent[0], sent[1]);
          Rank flat(whole, transport);
          flat.train(0, steps);
          EXPECT_EQ(sent[0], flat.step->take({}).bytes_sent) << "1/H of each tensor's bytes";
        });
      }
}

TEST(LocalStep, SaysWhetherAnExchangeIsOnItsWay) {
  run_thread_ranks(2, [](Transport& transport) {
    std::string after_steps[3];
    const RunConfig runs[] = {small_run(streamed), small_run(with(streamed, {"sync.delay=0"})),
                              small_run(local)};
    for (int i = 0; i < 3; ++i) {
      Rank rank(runs[i], transport);
      for (std::int64_t s = 0; s < 8; ++s) {
        rank.train(s, s + 1);
        if (s == 6) transport.barrier();  // which waits for it
        after_steps[i] += rank.step->is_exchanging() ? 'x' : '.';
      }
    }
    EXPECT_EQ(after_steps[0], "..xx.x..") << "turns of three steps, a delay of two";
    EXPECT_EQ(after_steps[1], "........");
    EXPECT_EQ(after_steps[2], "........");
  });
}

TEST(LocalStep, ADelayUsesNoGradientsMemory) {
  const RunConfig run = small_run(streamed);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.train(0, 3);
    const std::vector<float> gradients = values(rank.model.network.gradients());
    transport.barrier();
    EXPECT_TRUE(rank.step->sync_position().has_pending());
    EXPECT_EQ(values(rank.model.network.gradients()), gradients);
    EXPECT_EQ(rank.step->sync_position().pending, (SyncPosition::Pending{0, 3, 4}));
    rank.train(3, 4);
    EXPECT_TRUE(rank.step->sync_position().has_pending());
    rank.train(4, 5);
    EXPECT_FALSE(rank.step->sync_position().has_pending());
  });
}

}  // namespace
}  // namespace lpsgd
