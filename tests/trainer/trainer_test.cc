#include "trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "comm/agree.h"
#include "core/file.h"
#include "tests/trainer/small_run.h"
#include "trainer/run_folder.h"
#include "trainer/stop_signals.h"
#include "trainer/weights.h"

namespace lpsgd {
namespace {

/// Trains two ranks, or `ranks`, in `folder`, from its newest checkpoint if there is one. Returns the message
/// of the error that stopped them.
std::string train(const RunConfig& run, const std::string& folder,
                  std::optional<std::int64_t> steps = std::nullopt, const std::set<std::int64_t>& bad = {},
                  int ranks = 2) {
  TrainCommand command;
  command.out = folder;
  command.steps = steps;
  command.resume = find_resume_point(folder);
  const TrainData data{small_dataset(48, bad), small_dataset(30, bad)};  // four batches an epoch
  const NetworkSpec spec = network_of(run);
  try {
    run_thread_ranks(ranks, [&](Transport& transport) { train_rank(run, command, data, spec, transport); });
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// Ranks add their gradients in the order of ranks, as micro-batches are added. Only the running statistics
/// differ, which a step does not read.
TEST(Trainer, MicroBatchesTrainAsRanksDo) {
  const auto weights = [&](int ranks, const std::string& micro_batches, const std::string& sync) {
    const RunConfig run = small_run({"exchange.codec={kind: none}", "train.micro_batches=" + micro_batches,
                                     "sync=" + sync, "network.layers.2={dropout: d, probability: 0.3}"});
    const TestFolder out;
    EXPECT_EQ(train(run, out.path(), std::nullopt, {}, ranks), "");
    return read_weights(out.path(), network_of(run)).parameters;
  };
  const std::vector<float> expected = weights(3, "1", "{kind: every_step}");
  EXPECT_EQ(weights(1, "3", "{kind: every_step}"), expected);
  const auto expect_near = [](const std::vector<float>& got, const std::vector<float>& near) {
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], near[i], 1e-6);
  };
  // The mean of two means is rounded otherwise.
  expect_near(weights(2, "2", "{kind: every_step}"), weights(4, "1", "{kind: every_step}"));
  // One rank's local steps are those of synchronous SGD, up to the rounding of the outer step.
  expect_near(weights(1, "3", "{kind: local_sgd, steps: 3}"), expected);
}

TEST(Trainer, ResumesBitForBit) {
  // Rates that change in every step.
  for (const char* micro_batches : {"1", "3"}) {
    const RunConfig run =
        small_run({"schedule.warmup_epochs=1", "schedule.warmup_from=0.01", "schedule.decay={linear: 0}",
                   "optimizer.momentum_unit_gain=true", "schedule.momentum={1: 0.5}",
                   std::string("train.micro_batches=") + micro_batches});
    const TestFolder folder;
    const std::string whole = folder.path() + "/whole", parts = folder.path() + "/parts";
    std::filesystem::create_directories(whole);
    std::filesystem::create_directories(parts);
    EXPECT_EQ(train(run, whole), "");
    for (const std::int64_t steps : {2, 4, 5}) EXPECT_EQ(train(run, parts, steps), "");  // 4: an epoch's end
    EXPECT_EQ(train(run, parts), "");
    for (const char* file : {"model.safetensors", "state-rank0000.safetensors", "state-rank0001.safetensors"})
      EXPECT_EQ(read_file(whole + "/checkpoints/epoch-0002/" + file),
                read_file(parts + "/checkpoints/epoch-0002/" + file))
          << file;
    const std::vector<std::string> a = metrics_lines(whole), b = metrics_lines(parts);
    ASSERT_EQ(a.size(), 2u);
    ASSERT_EQ(b.size(), 2u);
    for (std::size_t e = 0; e < 2; ++e)
      for (const char* key : {"epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top5",
                              "samples", "bytes_sent", "bytes_fp32", "replicas_equal"})
        EXPECT_EQ(nlohmann::json::parse(a[e])[key], nlohmann::json::parse(b[e])[key]) << key;
  }
}

/// The average of an epoch's end serves the evaluation and the checkpoint.
TEST(Trainer, WeightsAreAveragedOncePerEpochsEnd) {
  const RunConfig run = small_run({"sync.kind=local_sgd", "sync.steps=3"});  // both epochs end inside a phase
  const TestFolder folder;
  EXPECT_EQ(train(run, folder.path()), "");
  const std::vector<std::string> lines = metrics_lines(folder.path());
  ASSERT_EQ(lines.size(), 2u);
  const std::uint64_t parameters = SmallModel(run, 0, 2).network.parameters().size();
  for (const std::string& line : lines) {
    const nlohmann::json record = nlohmann::json::parse(line);
    EXPECT_EQ(record["synchronisations"], 1);
    // Of two ranks: for the distance and for the evaluation.
    EXPECT_EQ(record["bytes_average"], 2 * 2 * 4 * parameters);
    EXPECT_GT(record["replica_distance"], 0);
  }
}

/// While H is 1, too, and after a stop inside the epoch.
TEST(Trainer, CountsSynchronisations) {
  const RunConfig run =
      small_run({"sync.kind=local_sgd", "sync.steps=2", "sync.warmup=constant", "sync.warmup_epochs=1"});
  const TestFolder folder;
  EXPECT_EQ(train(run, folder.path(), 3), "");
  EXPECT_EQ(train(run, folder.path()), "");
  const std::vector<std::string> lines = metrics_lines(folder.path());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(lines[0])["synchronisations"], 4);
  EXPECT_TRUE(nlohmann::json::parse(lines[0])["replica_distance"].is_null());
  EXPECT_EQ(nlohmann::json::parse(lines[1])["synchronisations"], 2);
  EXPECT_GT(nlohmann::json::parse(lines[1])["replica_distance"], 0);
}

/// Sends this process SIGTERM when its first image is read.
class SignallingDataset final : public ImageDataset {
 public:
  explicit SignallingDataset(std::int64_t size)
      : inner_(std::dynamic_pointer_cast<const ImageDataset>(small_dataset(size))) {}
  std::int64_t size() const override { return inner_->size(); }
  std::int64_t classes() const override { return inner_->classes(); }
  std::string name(std::int64_t i) const override { return inner_->name(i); }
  std::optional<ImageShape> fixed_shape() const override { return inner_->fixed_shape(); }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>& scratch) const override {
    if (i == 0) std::raise(SIGTERM);
    return inner_->image(i, scratch);
  }
  std::int32_t label(std::int64_t i) const override { return inner_->label(i); }

 private:
  std::shared_ptr<const ImageDataset> inner_;
};

TEST(Trainer, ASignalAbandonsTheEvaluationWhichIsThenDoneAnew) {
  const RunConfig run = small_run();
  const TestFolder folder;
  const std::string whole = folder.path() + "/whole", parts = folder.path() + "/parts";
  std::filesystem::create_directories(whole);
  std::filesystem::create_directories(parts);
  EXPECT_EQ(train(run, whole), "");
  install_signal_handlers();
  TrainCommand command;
  command.out = parts;
  const TrainData data{small_dataset(48), std::make_shared<SignallingDataset>(30)};
  run_thread_ranks(2, [&](Transport& transport) {
    EXPECT_EQ(train_rank(run, command, data, network_of(run), transport), SIGTERM);
  });
  forget_caught_signal();
  EXPECT_EQ(find_resume_point(parts)->folder, parts + "/checkpoints/step-000004");
  EXPECT_EQ(find_resume_point(parts)->manifest.position, (Position{4, 0, 4}));
  EXPECT_TRUE(metrics_lines(parts).empty());
  EXPECT_EQ(train(run, parts), "");
  EXPECT_EQ(read_file(whole + "/checkpoints/epoch-0002/model.safetensors"),
            read_file(parts + "/checkpoints/epoch-0002/model.safetensors"));
  for (std::size_t e = 0; e < 2; ++e)
    for (const char* key : {"train_loss", "val_loss", "samples"})
      EXPECT_EQ(nlohmann::json::parse(metrics_lines(whole)[e])[key],
                nlohmann::json::parse(metrics_lines(parts)[e])[key]);
}

/// The number of bad samples in each epoch's record.
std::vector<int> bad_samples(const std::string& folder) {
  std::vector<int> out;
  for (const std::string& line : metrics_lines(folder))
    out.push_back(nlohmann::json::parse(line)["bad_samples"]);
  return out;
}

TEST(Trainer, CountsTheBadSamplesThatItSkips) {
  const RunConfig run = small_run({"data.on_bad_sample=skip", "data.workers=2"});
  const TestFolder folder;
  for (const std::int64_t steps : {1, 6}) EXPECT_EQ(train(run, folder.path(), steps, {5, 29, 40}), "");
  EXPECT_EQ(train(run, folder.path(), std::nullopt, {5, 29, 40}), "");
  EXPECT_THAT(bad_samples(folder.path()), testing::ElementsAre(5, 5))
      << "three for training, two for evaluation";
  const TestFolder clean;
  EXPECT_EQ(train(run, clean.path()), "");
  EXPECT_THAT(bad_samples(clean.path()), testing::ElementsAre(0, 0));
}

TEST(Trainer, StopsAtABadSample) {
  const TestFolder folder;
  EXPECT_THAT(train(small_run(), folder.path(), std::nullopt, {17}),
              testing::HasSubstr("image 17: is not an image"));
}

TEST(Trainer, NeedsATestSample) {
  const RunConfig run = small_run({"data.on_bad_sample=skip"});
  std::set<std::int64_t> bad;
  for (std::int64_t i = 0; i < 30; ++i) bad.insert(i);
  const TestFolder folder;
  const std::string message =
      "no sample of the test set can be read; epoch 1 is not evaluated, its steps are in checkpoint " +
      folder.path() + "/checkpoints/step-000004";
  EXPECT_EQ(train(run, folder.path(), std::nullopt, bad), message);
  EXPECT_EQ(train(run, folder.path(), std::nullopt, bad), message) << "resumed, without a step";
}

TEST(Trainer, ANonFiniteGradientNamesTheLastCheckpoint) {
  const RunConfig run = small_run({"schedule.decay={1: 1.0e+38}"});  // from the second epoch on
  const TestFolder folder;
  const std::string message = train(run, folder.path());
  EXPECT_THAT(message, testing::ContainsRegex("^step [5-7]: the .* holds a NaN or an infinity; "));
  EXPECT_THAT(message,
              testing::EndsWith("the last checkpoint is " + folder.path() + "/checkpoints/epoch-0001"));
  EXPECT_EQ(find_resume_point(folder.path())->manifest.position.epoch, 1);
  EXPECT_THAT(train(run, folder.path()),
              testing::EndsWith("the last checkpoint is " + folder.path() + "/checkpoints/epoch-0001"))
      << "the one it resumed from";
}

TEST(Trainer, ANonFiniteGradientBeforeTheFirstCheckpointSaysSo) {
  const RunConfig run = small_run({"schedule.lr=1.0e+37"});
  const TestFolder folder;
  EXPECT_THAT(train(run, folder.path()), testing::EndsWith("infinity; no checkpoint was written yet"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/checkpoints"));
}

TEST(Trainer, WritesTheInitialWeights) {
  const RunConfig run = small_run();
  const TestFolder folder;
  EXPECT_EQ(train(run, folder.path(), 0), "");
  const std::optional<ResumePoint> written = find_resume_point(folder.path());
  ASSERT_TRUE(written);
  EXPECT_EQ(written->folder, folder.path() + "/checkpoints/step-000000");
  SmallModel model(run, 0, 1), other(small_run({"train.seed=6"}), 0, 1);
  TrainingState state;
  state.tensors = &other.network.tensors();
  state.parameters = other.network.parameters();
  state.buffers = other.network.buffers();
  read_model(SafetensorsFile(find_model(folder.path()).path), state);
  EXPECT_EQ(values(other.network.parameters()), values(model.network.parameters()));
}

TEST(Trainer, CheckpointsAsConfigured) {
  const RunConfig run = small_run({"train.epochs=5", "checkpoint.every_epochs=2", "checkpoint.keep=10"});
  const TestFolder folder;
  EXPECT_EQ(train(run, folder.path()), "");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/checkpoints"))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("epoch-0002", "epoch-0004", "epoch-0005"));
  EXPECT_EQ(metrics_lines(folder.path()).size(), 5u);
  const auto summary = nlohmann::json::parse(read_file(folder.path() + "/summary.json"));
  EXPECT_EQ(summary["step"], 20);
}

}  // namespace
}  // namespace lpsgd
