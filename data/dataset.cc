#include "data/dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/datasets.h"
#include "data/shards.h"

namespace lpsgd {

namespace {

struct Entry {
  const char* name;
  std::shared_ptr<const Dataset> (*open)(const DataOptions&, Split);
  bool has_files;
  std::size_t channels;
  double mean[3], std[3];  // of pixels / 255 over the training set, per channel (docs/data.md)
};

constexpr Entry table[] = {
    {"cifar10", open_cifar10, true, 3, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
    {"cifar100", open_cifar100, true, 3, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}},
    {"fashion_mnist", open_mnist, true, 1, {0.2860}, {0.3530}},
    {"imagenet", open_imagenet, true, 3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
    {"images", open_image_folders, true, 3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
    {"mnist", open_mnist, true, 1, {0.1307}, {0.3081}},
    {"noise", open_noise, false, 3, {0.5, 0.5, 0.5}, {0.29, 0.29, 0.29}},
    {"shapes", open_shapes, false, 3, {0.4203, 0.4215, 0.4209}, {0.2370, 0.2376, 0.2373}},
};

const Entry* find(const std::string& name) {
  const auto* entry =
      std::find_if(std::begin(table), std::end(table), [&](const Entry& e) { return e.name == name; });
  return entry == std::end(table) ? nullptr : entry;
}

void check_channels(const char* key, const std::vector<double>& values, std::int64_t channels) {
  if (static_cast<std::int64_t>(values.size()) != channels)
    throw ConfigError(fmt::format("data.{}: {} value{}, but the images have {} channel{}", key, values.size(),
                                  values.size() == 1 ? "" : "s", channels, channels == 1 ? "" : "s"));
  for (const double value : values) {
    if (!std::isfinite(value))
      throw ConfigError(fmt::format("data.{}: {} is not a finite number", key, value));
  }
}

}  // namespace

void fields(config::Visitor& visitor, DataOptions& options) {
  std::vector<const char*> names;
  std::size_t index = 0;
  for (const Entry& entry : table) {
    if (options.dataset == entry.name) index = names.size();
    names.push_back(entry.name);
  }
  visitor.required();
  visitor.choice(
      "dataset", index, std::span<const char* const>(names),
      "which data set: docs/data.md describes them; `shapes` and `noise` are generated, the others are "
      "read from files");
  options.dataset = names[index];

  visitor.field("root", options.root, "the folder with the data set's files; generated data sets need none");
  visitor.field(
      "shards", options.shards,
      "a shard, or a folder of shards, which `lpsgd data pack` wrote from this data set; it is read in "
      "place of the files in `root`");
  visitor.field("train_folder", options.train_folder,
                "for `images` and `imagenet`: the folder in `root` with the training images; default: train");
  visitor.field("test_folder", options.test_folder,
                "the same for the test images; default: val, and for `images` test where there is no val");
  visitor.field("shuffle", options.shuffle, "visit the training samples in a new order in every epoch");
  image_fields(visitor, options.augment, options.evaluate, options.interpolation);
  visitor.field("mean", options.mean,
                "per channel, subtracted from pixels / 255; empty: the data set's own mean");
  visitor.field("std", options.std,
                "per channel, divides after the mean is subtracted; empty: the data set's own deviation");
  const config::Range samples{.min = 0, .max = 100'000'000};
  visitor.field("train_samples", options.train_samples,
                "the number of training samples to generate, or to use of those in the files; 0: all",
                samples);
  visitor.field("test_samples", options.test_samples, "the same for the test samples", samples);
  visitor.field("image", options.image, "for `noise`: height, width and channels of an image",
                {.min = 1, .max = 65536});
  visitor.field("classes", options.classes, "for `noise`: the number of classes",
                {.min = 1, .max = 1'000'000});
  visitor.field("workers", options.workers,
                "threads of a rank that read samples; 0: the cores of this node divided by its ranks",
                {.min = 0, .max = 1024});
  visitor.field("prefetch", options.prefetch, "the number of batches that are made ready ahead",
                {.min = 1, .max = 1024});
}

std::shared_ptr<const Dataset> open_dataset(const DataOptions& options, Split split) {
  const Entry* entry = find(options.dataset);
  if (!entry) throw ConfigError(fmt::format("data.dataset: '{}' is not known", options.dataset));
  if (options.shards.empty()) return entry->open(options, split);
  if (!entry->has_files)
    throw ConfigError(fmt::format("data.shards: data set {} is generated, not read", options.dataset));
  return open_shards(options.shards, options.dataset, split,
                     split == Split::train ? options.train_samples : options.test_samples);
}

Normalization normalization(const DataOptions& options, std::int64_t channels) {
  Normalization out{options.mean, options.std};
  if (const Entry* entry = find(options.dataset)) {
    // `noise` is the same in every channel, however many there are.
    const auto fill = [&](std::vector<double>& values, const double(&own)[3]) {
      if (!values.empty()) return;
      values.assign(own, own + entry->channels);
      if (std::string_view(entry->name) == "noise") values.resize(static_cast<std::size_t>(channels), own[0]);
    };
    fill(out.mean, entry->mean);
    fill(out.std, entry->std);
  }
  check_channels("mean", out.mean, channels);
  check_channels("std", out.std, channels);
  for (const double value : out.std) {
    // The divisor is float32. A std that underflows to 0 there would give infinities.
    if (!(static_cast<float>(value) > 0))
      throw ConfigError(fmt::format("data.std: {} is not above 0", value));
  }
  return out;
}

}  // namespace lpsgd
