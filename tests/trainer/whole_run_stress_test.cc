// Whole training runs over threads, for ThreadSanitizer: readers, communication threads, checkpoints that are
// written beside training, evaluation.
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "core/file.h"
#include "core/log.h"
#include "tests/trainer/small_run.h"
#include "trainer/run_folder.h"
#include "trainer/trainer.h"

namespace lpsgd {
namespace {

/// Twelve steps in three epochs. Returns what the last checkpoint holds of the model and of the last rank.
std::string train(int ranks, const std::string& codec, bool overlap,
                  const std::string& sync = "kind: every_step") {
  const TestFolder folder;
  const RunConfig run =
      small_run({"exchange.codec=" + codec, fmt::format("exchange.overlap={}", overlap),
                 fmt::format("sync={{{}}}", sync), "train.epochs=3", "data.workers=2",
                 "metrics.codec_error=true", "checkpoint={every_epochs: 0, every_steps: 3, keep: 2}"});
  TrainCommand command;
  command.out = folder.path();
  command.check_replicas = 2;
  const TrainData data{small_dataset(48), small_dataset(30)};
  const NetworkSpec spec = network_of(run);
  run_thread_ranks(ranks, [&](Transport& transport) { train_rank(run, command, data, spec, transport); });
  const std::string checkpoint = folder.path() + "/checkpoints/epoch-0003/";
  return read_file(checkpoint + "model.safetensors") +
         read_file(checkpoint + fmt::format("state-rank{:04}.safetensors", ranks - 1));
}

TEST(WholeRunStress, OverlapChangesNoBit) {
  init_logging(0, 1);  // before there are threads, as the program does
  for (const char* codec : {"none", "onebit", "{kind: qsgd, bits: 4, bucket: 64}",
                            "{kind: topk, density: 0.1}", "{kind: sign, error_feedback: true}"})
    for (const int ranks : {2, 3}) EXPECT_EQ(train(ranks, codec, true), train(ranks, codec, false)) << codec;
}

/// Blocks and all ranks each have an exchange, with a communication thread of its own.
TEST(WholeRunStress, OverlapChangesNoBitOfLocalSteps) {
  init_logging(0, 1);
  for (const char* codec : {"none", "onebit", "{kind: qsgd, bits: 4, bucket: 64}"})
    for (const auto& [ranks, sync] :
         {std::pair(2, "kind: local_sgd, steps: 2"), std::pair(3, "kind: local_sgd, steps: 5"),
          std::pair(4, "kind: hierarchical_local_sgd, steps: 1, block_steps: 3, ranks_per_block: 2")})
      EXPECT_EQ(train(ranks, codec, true, sync), train(ranks, codec, false, sync)) << codec << ", " << sync;
}

}  // namespace
}  // namespace lpsgd
