// The warm-up of the codecs: first as without codecs, then as a run that begins there with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/trainer/local_run.h"

namespace lpsgd::local_run {
namespace {

void set_warmup(SynchronousStep& step, bool on) {
  step.settle();
  step.check_finite();
  step.take({});
  step.set_warmup(on);
}

/// `to` goes on where `from` is.
void copy_state(Rank& from, Rank& to) {
  from.step->settle();
  to.step->set_sync_position(from.step->sync_position());
  std::ranges::copy(from.model.network.parameters(), to.model.network.parameters().begin());
  const std::vector<NamedArena> read = from.step->arenas(), written = to.step->arenas();
  for (std::size_t i = 0; i < read.size(); ++i) std::ranges::copy(read[i].values, written[i].values.begin());
  for (std::size_t i = 0; i < from.model.network.buffers().size(); ++i)
    std::ranges::copy(from.model.network.buffers()[i].values, to.model.network.buffers()[i].values.begin());
}

TEST(Warmup, IsARunWithoutCodecsAndThenOneThatBeginsThere) {
  const std::vector<Overrides> variants{{},
                                        local,
                                        streamed,
                                        hierarchical,
                                        {"sync.kind=local_sgd", "sync.steps=4", "sync.fragments=2"},
                                        {"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1"}};
  const Overrides onebit{"exchange.codec={kind: onebit, bucket: 64}"};
  for (const Overrides& variant : variants)
    for (const std::int64_t end : {1, 6, 8}) {
      SCOPED_TRACE(testing::Message() << (variant.empty() ? "every_step" : variant[0]) << ", " << end);
      run_thread_ranks(4, [&](Transport& transport) {
        Rank without(small_run(with({"exchange.codec=none"}, variant)), transport);
        without.train(0, end);
        without.step->settle();
        Rank warm(small_run(with(onebit, variant)), transport);
        set_warmup(*warm.step, true);
        warm.train(0, end);
        warm.step->settle();
        EXPECT_EQ(warm.weights(), without.weights());
        for (const std::vector<float>& residual : warm.step->state().round1)
          EXPECT_TRUE(std::ranges::all_of(residual, [](float x) { return x == 0; }));

        Rank begins(small_run(with(onebit, variant)), transport);
        copy_state(warm, begins);
        set_warmup(*warm.step, false);
        for (Rank* rank : {&warm, &begins, &without}) {
          rank->train(end, steps);
          rank->step->settle();
        }
        EXPECT_EQ(warm.state(), begins.state());
        EXPECT_NE(warm.weights(), without.weights());
        EXPECT_TRUE(warm.step->replicas_equal());
      });
    }
}

TEST(Warmup, CountsWhatIsSent) {
  for (const auto& [variant, copies] : {std::pair{Overrides{}, 6 * 2 * 3},
                                        // 2 synchronisations in each of 2 blocks of 2, 1 of all 4
                                        std::pair{hierarchical, 2 * 2 * 2 + 2 * 3}}) {
    const RunConfig run = small_run(with({"metrics.codec_error=true"}, variant));
    run_thread_ranks(4, [&, variant = variant, copies = copies](Transport& transport) {
      Rank rank(run, transport);
      set_warmup(*rank.step, true);
      rank.train(0, 6);
      std::vector<CodingError> errors(rank.model.codecs.size());
      StepMetrics metrics = rank.step->take(errors);
      std::uint64_t values = 0, sent = 0, encoded = 0;
      for (const std::uint64_t one : transport.all_gather(metrics.bytes_sent)) sent += one;
      for (std::size_t t = 0; t < errors.size(); ++t) {
        const TensorInfo& tensor = rank.model.network.tensors()[t];
        values += static_cast<std::uint64_t>(tensor.elements);
        encoded += wire_bytes(tensor, rank.model.codecs[t], 4);
        EXPECT_GT(errors[t].exchanges, 0);
        EXPECT_EQ(errors[t].float32, errors[t].exchanges);
        EXPECT_EQ(errors[t].gradient, 0);
        std::uint64_t bytes = 0;
        for (const std::uint64_t one : transport.all_gather(errors[t].bytes)) bytes += one;
        EXPECT_EQ(bytes, static_cast<std::uint64_t>(copies * 4 * tensor.elements));
      }
      EXPECT_EQ(sent, static_cast<std::uint64_t>(copies) * 4 * values);
      if (run.sync.kind != SyncKind::every_step) return;

      rank.step->set_warmup(false);
      rank.train(6, 8);
      metrics = rank.step->take(errors);
      EXPECT_EQ(errors[0].exchanges, 8);
      EXPECT_EQ(errors[0].float32, 6);
      EXPECT_GT(errors[0].gradient, 0);
      sent = 0;
      for (const std::uint64_t one : transport.all_gather(metrics.bytes_sent)) sent += one;
      EXPECT_EQ(sent, 2 * 2 * 3 * encoded);
    });
  }
}

}  // namespace
}  // namespace lpsgd::local_run
