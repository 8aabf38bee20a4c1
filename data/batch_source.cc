#include "data/batch_source.h"

#include <fmt/core.h>

#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "data/image_batches.h"
#include "data/micro_batches.h"
#include "data/sequence_batches.h"

namespace lpsgd {

std::vector<std::int64_t> epoch_order(std::int64_t size, bool shuffle, std::uint32_t seed,
                                      std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  // Fisher and Yates, from the end.
  PhiloxSequence random(seed, RandomUse::shuffle, static_cast<std::uint32_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
  return order;
}

std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const Dataset> dataset,
                                               const DataOptions& data, const BatchOptions& options) {
  require(dataset != nullptr, "batches need a data set");
  require(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks,
          "a rank must be below the number of ranks");
  require(options.micro_batches >= 1, "a batch has at least one micro-batch");
  if (options.global_batch < 1 || options.global_batch % (options.ranks * options.micro_batches) != 0)
    throw ConfigError(fmt::format(
        "train.batch_size: {} samples cannot be shared equally by {} ranks{}", options.global_batch,
        options.ranks,
        options.micro_batches == 1 ? "" : fmt::format(" with {} micro-batches each", options.micro_batches)));
  if (options.training && dataset->size() < options.global_batch)
    throw ConfigError(
        fmt::format("train.batch_size: the training set has {} samples, fewer than one global batch of {}",
                    dataset->size(), options.global_batch));
  std::unique_ptr<BatchSource> out;
  if (auto images = std::dynamic_pointer_cast<const ImageDataset>(dataset))
    out = std::make_unique<ImageBatches>(std::move(images), data, options);
  else
    out = std::make_unique<SequenceBatches>(std::move(dataset), data, options);
  return options.micro_batches == 1 ? std::move(out)
                                    : make_micro_batches(std::move(out), options.micro_batches);
}

}  // namespace lpsgd
