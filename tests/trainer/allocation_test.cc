// A training step allocates nothing: forward, backward, exchange, update, the loader and the progress line.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <numeric>
#include <ostream>

#include "comm/link.h"
#include "tests/core/temporary_folder.h"
#include "tests/trainer/allocation_counter.h"
#include "trainer/trainer.h"

namespace lpsgd {
namespace {

constexpr int ranks = 3;
constexpr std::int64_t batch = 4 * ranks;
constexpr std::int64_t warm_up = 12, counted = 40, steps = warm_up + counted;

/// Images in order. Counting starts when the loader asks for the first image of batch `warm_up` and ends with
/// the last batch's: it works at most four batches ahead of the steps, so what is counted is steps alone.
class CountingDataset final : public ImageDataset {
 public:
  explicit CountingDataset(std::int64_t size) : size_(size), pixels_(32 * 32 * 3) {
    std::iota(pixels_.begin(), pixels_.end(), std::uint8_t{0});
  }
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return 10; }
  std::string name(std::int64_t i) const override { return std::to_string(i); }
  std::optional<ImageShape> fixed_shape() const override { return ImageShape{32, 32, 3}; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    if (i == warm_up * batch) allocation_counter::start();
    if (i == (steps - 1) * batch) allocation_counter::stop();
    return {pixels_, fixed_shape()};
  }
  std::int32_t label(std::int64_t i) const override { return static_cast<std::int32_t>(i % 10); }

 private:
  std::int64_t size_;
  std::vector<std::uint8_t> pixels_;
};

/// Sequences of 1 to 9 frames, in order; they count as the images do.
class CountingSequences final : public SequenceDataset {
 public:
  explicit CountingSequences(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return 10; }
  std::string name(std::int64_t i) const override { return std::to_string(i); }
  std::int64_t features() const override { return 6; }
  std::int64_t frames(std::int64_t i) const override { return 1 + i * 7 % 9; }
  void read(std::int64_t i, std::int64_t first, std::int64_t count, float* features,
            std::int32_t* labels) const override {
    if (i == warm_up * batch) allocation_counter::start();
    if (i == (steps - 1) * batch) allocation_counter::stop();
    for (std::int64_t v = 0; v < 6 * count; ++v) features[v] = static_cast<float>((i + first + v) % 5);
    std::fill(labels, labels + count, static_cast<std::int32_t>(i % 10));
  }

 private:
  std::int64_t size_;
};

const char* const config = R"(network:
  name: small
  input: [32, 32, 3]
  classes: 10
  layers:
    - {conv: conv1, filters: 64, kernel: 3, stride: 2, pad: 1}
    - {batch_norm: bn1}
    - relu
    - {conv: conv2, filters: 64, kernel: 3, stride: 2, pad: 1, bias: false}
    - {batch_norm: bn2}
    - relu
    - {max_pool: pool, kernel: 2, stride: 2}
    - {dropout: drop, probability: 0.2}
    - flatten
    - {dense: fc1, units: 64}
    - relu
    - {dense: fc2, units: 10}
data: {dataset: shapes, shuffle: false, augment: {pad: 4, mirror: true}}
train: {epochs: 1, batch_size: 12, threads: 1}
optimizer: {momentum: 0.9, weight_decay: 1.0e-4, no_decay: [norm, bias], clip_norm: 10}
schedule: {lr: 0.001}
exchange: {transport: threads, ranks: 3, min_elements: 100}
)";

struct AllocationCase {
  const char* name;
  std::vector<std::string> overrides;
  friend void PrintTo(const AllocationCase& c, std::ostream* out) { *out << c.name; }
};

const AllocationCase cases[] = {
    {"none", {"exchange.codec=none"}},
    {"qsgd4", {"exchange.codec={kind: qsgd, bits: 4, bucket: 512}"}},
    {"optimal", {"exchange.codec={kind: qsgd, bits: 4, levels: optimal, bucket: 64, error_feedback: true}"}},
    {"onebit_columns", {"exchange.codec={kind: onebit, bucket: column}"}},
    {"topk", {"exchange.codec={kind: topk, density: 0.01}"}},
    {"dynamic8", {"exchange.codec=dynamic8"}},
    {"mx", {"exchange.codec=mx"}},
    {"majority", {"exchange.codec={kind: sign, majority: true}"}},
    {"codec_error", {"exchange.codec={kind: qsgd, bits: 2}", "metrics.codec_error=true"}},
    {"allreduce", {"exchange.codec=none", "exchange.collective=allreduce"}},
    {"simulated", {"exchange.codec=onebit", "exchange.collective=simulated"}},
    {"fragments", {"exchange.codec=onebit", "sync={kind: local_sgd, steps: 4, fragments: 2}"}},
    {"delay",
     {"exchange.codec=onebit", "exchange.link={bandwidth: 1Gbit, latency: 20us}",
      "sync={kind: block_momentum, steps: 6, fragments: 2, delay: 2}"}},
    {"local_sgd", {"exchange.codec=onebit", "sync={kind: local_sgd, steps: 3, reset_momentum: true}"}},
    {"blocks",
     {"exchange.codec=sign", "optimizer={kind: adam}",
      "sync={kind: hierarchical_local_sgd, steps: 2, block_steps: 2, ranks_per_block: 3}"}},
    {"block_momentum",
     {"exchange.codec=none", "optimizer.kind=lars", "sync={kind: block_momentum, steps: 2}"}},
    {"micro_batches", {"exchange.codec=onebit", "train.micro_batches=4"}},
    {"link", {"exchange.codec=onebit", "exchange.link={bandwidth: 1Gbit, latency: 20us}"}},
};

class Allocation : public testing::TestWithParam<AllocationCase> {};
INSTANTIATE_TEST_SUITE_P(, Allocation, testing::ValuesIn(cases),
                         [](const auto& p) { return std::string(p.param.name); });

/// Trains `steps` steps on the data set, which counts.
void expect_no_allocation(const char* yaml, const std::vector<std::string>& overrides,
                          const std::shared_ptr<const Dataset>& dataset) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/small.yaml") << yaml;
  const RunConfig run =
      load_run_config(folder.path() + "/small.yaml", overrides, config::Environment::expand);
  const NetworkSpec spec = network_for(run, {dataset.get()});
  TrainCommand command;
  command.out = folder.path();
  command.steps = steps;
  command.progress = ProgressMode::terminal;  // ten lines a second
  run_thread_ranks(ranks, [&](Transport& transport) {
    const auto linked = make_linked_transport(transport, run.exchange.link);
    train_rank(run, command, {dataset, dataset}, spec, run.exchange.link.emulated() ? *linked : transport);
  });
  const allocation_counter::Counts counts = allocation_counter::counts();
  EXPECT_EQ(counts.own, 0u) << "in " << counted << " steps; the first ones, innermost first:\n"
                            << allocation_counter::own_stacks();
  EXPECT_GT(counts.others, 0u) << "oneDNN makes some, so nothing was counted";
}

TEST_P(Allocation, AStepMakesNone) {
  expect_no_allocation(config, GetParam().overrides, std::make_shared<CountingDataset>(steps * batch));
}

TEST(SequenceAllocation, AStepMakesNone) {
  const char* const yaml = R"(network:
  name: small
  input: [any, 6]
  classes: 10
  layers:
    - {lstm: lstm1, cell: 16, projection: 8}
    - {lstm: lstm2, cell: 16}
    - {dense: fc, units: 10}
data: {dataset: an4, shuffle: false}
train: {epochs: 1, batch_size: 12, threads: 1}
schedule: {lr: 0.001}
exchange: {transport: threads, ranks: 3, codec: {kind: qsgd, bits: 4}, min_elements: 100}
)";
  expect_no_allocation(yaml, {}, std::make_shared<CountingSequences>(steps * batch));
}

}  // namespace
}  // namespace lpsgd
