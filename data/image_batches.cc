#include "data/image_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/philox.h"

namespace lpsgd {

namespace {

struct ImageWorker final : BatchSource::Worker {
  std::vector<std::uint8_t> file;
};

ImageShape image_shape(const ImageDataset& dataset, const DataOptions& data,
                       const std::vector<std::int64_t>& input) {
  const std::optional<ImageShape> stored = dataset.fixed_shape();
  if (!stored) throw ConfigError(fmt::format("data.dataset: {} has images of several sizes", data.dataset));
  if (!input.empty() && input != std::vector{stored->height, stored->width, stored->channels})
    throw ConfigError(fmt::format("network.input: the images of data set {} are ({}, {}, {})", data.dataset,
                                  stored->height, stored->width, stored->channels));
  return *stored;
}

}  // namespace

ImageBatches::ImageBatches(std::shared_ptr<const ImageDataset> dataset, const DataOptions& data,
                           const BatchOptions& options)
    : dataset_(std::move(dataset)),
      options_(options),
      augment_(options.training ? data.augment : AugmentOptions{}),
      shuffle_(options.training && data.shuffle),
      skip_bad_(data.on_bad_sample == OnBadSample::skip),
      image_(image_shape(*dataset_, data, options.input)),
      local_(options.global_batch / options.ranks) {
  const std::int64_t size = dataset_->size();
  if (options.training) {
    batches_ = size / options.global_batch;
  } else {
    begin_ = options.rank * size / options.ranks;
    samples_ = (options.rank + 1) * size / options.ranks - begin_;
    batches_ = (samples_ + local_ - 1) / local_;
  }
}

BatchShape ImageBatches::shape() const {
  return {.samples = local_, .image = image_, .elements = image_.bytes(), .has_crops = true};
}

void ImageBatches::begin_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  if (options_.training) order_ = epoch_order(dataset_->size(), shuffle_, options_.seed, epoch);
}

BatchCounts ImageBatches::counts(std::int64_t batch) const {
  return {.valid = options_.training ? local_ : std::min(local_, samples_ - batch * local_)};
}

std::unique_ptr<BatchSource::Worker> ImageBatches::make_worker() const {
  return std::make_unique<ImageWorker>();
}

std::int64_t ImageBatches::sample_at(std::int64_t batch, std::int64_t position) const {
  if (!options_.training) return begin_ + batch * local_ + position;
  return order_[static_cast<std::size_t>(batch * options_.global_batch + options_.rank * local_ + position)];
}

PixelCrop ImageBatches::draw_crop(std::int64_t sample) const {
  if (augment_.pad == 0 && !augment_.mirror) return {};
  PhiloxSequence random(options_.seed, RandomUse::augmentation, static_cast<std::uint32_t>(sample),
                        static_cast<std::uint32_t>(epoch_));
  const auto pad = static_cast<std::int32_t>(augment_.pad);
  const auto offsets = static_cast<std::uint32_t>(2 * pad + 1);
  PixelCrop crop;
  crop.down = static_cast<std::int32_t>(random.below(offsets)) - pad;
  crop.across = static_cast<std::int32_t>(random.below(offsets)) - pad;
  crop.mirrored = augment_.mirror && (random.next() & 1u) != 0;
  return crop;
}

void ImageBatches::read(std::int64_t sample, Worker& worker, const SampleView& out) const {
  const StoredImage image = dataset_->image(sample, static_cast<ImageWorker&>(worker).file);
  std::memcpy(out.pixels, image.bytes.data(), static_cast<std::size_t>(image_.bytes()));
  *out.crop = draw_crop(sample);
  *out.labels = dataset_->label(sample);
}

void ImageBatches::fill(Worker& worker, std::int64_t batch, std::int64_t position,
                        const SampleView& out) const {
  const std::int64_t sample = sample_at(batch, position);
  try {
    return read(sample, worker, out);
  } catch (const FileError& e) {
    if (!skip_bad_) throw;
    worker.bad_samples.emplace_back(e.what());
  }
  if (options_.training) return read_behind(sample, worker, out);
  std::fill_n(out.pixels, image_.bytes(), std::uint8_t{0});
  *out.crop = {};
  *out.labels = -1;
}

void ImageBatches::read_behind(std::int64_t bad, Worker& worker, const SampleView& out) const {
  const std::int64_t size = dataset_->size();
  for (std::int64_t next = (bad + 1) % size; next != bad; next = (next + 1) % size) {
    try {
      return read(next, worker, out);
    } catch (const FileError&) {  // it is reported at its own turn
    }
  }
  throw FileError(fmt::format("{} (data.on_bad_sample: skip finds no other: all {} samples are bad)",
                              worker.bad_samples.back(), size));
}

}  // namespace lpsgd
