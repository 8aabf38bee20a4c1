#include "tests/trainer/small_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "quant/policy.h"
#include "trainer/batch_inputs.h"

namespace lpsgd {
namespace {

const char* const yaml = R"(network:
  name: small
  input: [8, 8, 3]
  classes: 3
  layers:
    - {conv: conv, filters: 4, kernel: 3, stride: 2, pad: 1, bias: false}
    - {batch_norm: bn}
    - relu
    - flatten
    - {dense: fc, units: 3}
data: {dataset: shapes, shuffle: true}
train: {epochs: 2, batch_size: 12, threads: 1, seed: 5, device: cpu, branches: always}
optimizer: {momentum: 0.9}
schedule: {lr: 0.05}
exchange: {transport: threads, codec: {kind: onebit, bucket: 32}, min_elements: 0}
checkpoint: {every_epochs: 1}
)";

class SmallDataset final : public ImageDataset {
 public:
  SmallDataset(std::int64_t size, std::set<std::int64_t> bad)
      : pixels_(static_cast<std::size_t>(size) * image_bytes), bad_(std::move(bad)) {
    PhiloxSequence random(1, RandomUse::dataset, 0);
    for (std::uint8_t& p : pixels_) p = static_cast<std::uint8_t>(random.below(256));
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(pixels_.size() / image_bytes); }
  std::int64_t classes() const override { return 3; }
  std::string name(std::int64_t i) const override { return fmt::format("image {}", i); }
  std::optional<ImageShape> fixed_shape() const override { return ImageShape{8, 8, 3}; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    if (bad_.contains(i)) throw FileError(name(i) + ": is not an image");
    return {std::span(pixels_).subspan(static_cast<std::size_t>(i) * image_bytes, image_bytes),
            fixed_shape()};
  }
  std::int32_t label(std::int64_t i) const override { return static_cast<std::int32_t>(i % 3); }

 private:
  static constexpr std::size_t image_bytes = 8 * 8 * 3;
  std::vector<std::uint8_t> pixels_;
  std::set<std::int64_t> bad_;
};

}  // namespace

RunConfig small_run(const std::vector<std::string>& overrides) {
  const TestFolder folder;
  const std::string path = folder.path() + "/small.yaml";
  std::ofstream(path) << yaml;
  return load_run_config(path, overrides, config::Environment::expand);
}

std::shared_ptr<const Dataset> small_dataset(std::int64_t size, std::set<std::int64_t> bad) {
  return std::make_shared<SmallDataset>(size, std::move(bad));
}

SmallModel::SmallModel(const RunConfig& run, int rank, int ranks)
    : spec(network_of(run)),
      codecs(assign_codecs(run.exchange.policy, spec.tensors())),
      network(spec, {.batch = run.train.batch_size / ranks,
                     .first = run.train.batch_size / ranks * rank,
                     .seed = static_cast<std::uint32_t>(run.train.seed),
                     .pixels = PixelOptions{{8, 8, 3}, normalization(run.data, 3)}}),
      optimizer(run.optimizer, network.tensors(), network.parameters().size()) {}

std::unique_ptr<Loader> small_loader(const RunConfig& run, std::int64_t samples, int rank, int ranks,
                                     bool training) {
  return std::make_unique<Loader>(
      make_batch_source(small_dataset(samples), run.data,
                        batch_options(run, network_of(run), rank, ranks, training)),
      loader_options(run, Device::cpu(), 1, training));
}

std::vector<float> values(std::span<const float> from) {
  return {from.begin(), from.end()};
}

}  // namespace lpsgd
