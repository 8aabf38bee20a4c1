#include "data/image_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "data/image_reader.h"

namespace lpsgd {

namespace {

struct ImageWorker final : BatchSource::Worker {
  ImageWorker(const ImageTransform& transform, const ImageShape& out) : reader(transform, out) {}
  ImageReader reader;
  std::vector<std::uint8_t> file;
};

/// The network's input, or the shape that all images are stored in.
ImageShape input_shape(const ImageDataset& dataset, const DataOptions& data, const BatchOptions& options) {
  const std::optional<ImageShape> stored = dataset.fixed_shape();
  if (options.input.empty()) {
    if (!stored) throw ConfigError(fmt::format("data.dataset: {} has images of several sizes", data.dataset));
    return *stored;
  }
  if (options.input.size() != 3) throw ConfigError("network.input: images need (height, width, channels)");
  const ImageShape out{options.input[0], options.input[1], options.input[2]};
  if (stored && data.evaluate.automatic() && !can_become(*stored, out))
    throw ConfigError(fmt::format(
        "network.input: the images of data set {} are ({}, {}, {}); data.evaluate can resize them",
        data.dataset, stored->height, stored->width, stored->channels));
  return out;
}

}  // namespace

ImageBatches::ImageBatches(std::shared_ptr<const ImageDataset> dataset, const DataOptions& data,
                           const BatchOptions& options)
    : dataset_(std::move(dataset)),
      options_(options),
      shuffle_(options.training && data.shuffle),
      skip_bad_(data.on_bad_sample == OnBadSample::skip),
      image_(input_shape(*dataset_, data, options)),
      transform_(resolve({data.augment, data.evaluate, data.interpolation}, dataset_->fixed_shape(), image_)),
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
  if (!options_.training) return;
  order_ = epoch_order(dataset_->size(), shuffle_, options_.seed, epoch);
  if (skip_bad_) known_bad_ = std::make_unique<std::atomic<bool>[]>(order_.size());
}

BatchCounts ImageBatches::counts(std::int64_t batch) const {
  return {.valid = options_.training ? local_ : std::min(local_, samples_ - batch * local_)};
}

std::unique_ptr<BatchSource::Worker> ImageBatches::make_worker() const {
  return std::make_unique<ImageWorker>(transform_, image_);
}

std::int64_t ImageBatches::sample_at(std::int64_t batch, std::int64_t position) const {
  if (!options_.training) return begin_ + batch * local_ + position;
  return order_[static_cast<std::size_t>(batch * options_.global_batch + options_.rank * local_ + position)];
}

void ImageBatches::read(std::int64_t sample, Worker& worker, const SampleView& out) const {
  auto& own = static_cast<ImageWorker&>(worker);
  const StoredImage image = dataset_->image(sample, own.file);
  PhiloxSequence random(options_.seed, RandomUse::augmentation, static_cast<std::uint32_t>(sample),
                        static_cast<std::uint32_t>(epoch_));
  *out.crop =
      own.reader.read(image, dataset_->name(sample), options_.training ? &random : nullptr, out.pixels);
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
  if (options_.training) {
    known_bad_[static_cast<std::size_t>(sample)] = true;
    return read_behind(sample, worker, out);
  }
  std::fill_n(out.pixels, image_.bytes(), std::uint8_t{0});
  *out.crop = {};
  *out.labels = -1;
}

void ImageBatches::read_behind(std::int64_t bad, Worker& worker, const SampleView& out) const {
  const std::int64_t size = dataset_->size();
  for (std::int64_t next = (bad + 1) % size; next != bad; next = (next + 1) % size) {
    std::atomic<bool>& is_bad = known_bad_[static_cast<std::size_t>(next)];
    if (is_bad) continue;
    try {
      return read(next, worker, out);
    } catch (const FileError&) {  // it is reported at its own turn
      is_bad = true;
    }
  }
  throw FileError(fmt::format("{} (data.on_bad_sample: skip finds no other: all {} samples are bad)",
                              worker.bad_samples.back(), size));
}

}  // namespace lpsgd
