#include "data/dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/datasets.h"
#include "data/shards.h"
#include "data/speech/an4.h"
#include "data/text.h"

namespace lpsgd {

namespace {

struct Entry {
  const char* name;
  std::shared_ptr<const Dataset> (*open)(const DataOptions&, Split);
  // Of pixels / 255 over the training set, per channel (docs/data.md). Sequences have no channels here.
  std::size_t channels = 0;
  double mean[3] = {}, std[3] = {};
  bool is_packable = false;         // images from files
  bool is_sorted_by_class = false;  // samples of one class lie together
};

constexpr Entry table[] = {
    {"an4", open_an4},
    {"cifar10", open_cifar10, 3, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}, true},
    {"cifar100", open_cifar100, 3, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}, true},
    {"fashion_mnist", open_mnist, 1, {0.2860}, {0.3530}, true},
    {"imagenet", open_imagenet, 3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, true, true},
    {"images", open_image_folders, 3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, true, true},
    {"mnist", open_mnist, 1, {0.1307}, {0.3081}, true},
    {"noise", open_noise, 3, {0.5, 0.5, 0.5}, {0.29, 0.29, 0.29}},
    {"ptb", open_ptb},
    {"shapes", open_shapes, 3, {0.4203, 0.4215, 0.4209}, {0.2370, 0.2376, 0.2373}},
    {"text", open_text},
    {"wikitext2", open_wikitext2},
};

const Entry* find(const std::string& name) {
  const auto* entry =
      std::find_if(std::begin(table), std::end(table), [&](const Entry& e) { return e.name == name; });
  return entry == std::end(table) ? nullptr : entry;
}

void check_channels(const char* key, const std::vector<double>& values, std::int64_t channels) {
  if (static_cast<std::int64_t>(values.size()) != channels)
    throw ConfigError(fmt::format("data.{}: {} value{}, but the network takes images of {} channel{}", key,
                                  values.size(), values.size() == 1 ? "" : "s", channels,
                                  channels == 1 ? "" : "s"));
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
                "for `images` and `imagenet`: the folder in `root` with the test images; default: val, and "
                "for `images` test where there is no val");
  visitor.field("shuffle", options.shuffle, "visit the training samples in a new order in every epoch");
  image_fields(visitor, options.augment, options.evaluate, options.interpolation);
  visitor.field(
      "mean", options.mean,
      "subtracted from each channel's pixels / 255, or from a frame's features; empty: the data set's mean "
      "(docs/data.md), and for `images` ImageNet's");
  visitor.field(
      "std", options.std,
      "divides them after the mean is subtracted; empty: the data set's deviation, as for the mean");
  const config::Range samples{.min = 0, .max = 100'000'000};
  visitor.field("train_samples", options.train_samples,
                "the number of training samples to generate, or to use of those in the files; 0: all",
                samples);
  visitor.field("test_samples", options.test_samples,
                "the number of test samples to generate, or to use of those in the files; 0: all", samples);
  visitor.field("image", options.image, "for `noise`: height, width and channels of an image",
                {.min = 1, .max = 65536});
  visitor.field("classes", options.classes, "for `noise`: the number of classes",
                {.min = 1, .max = 1'000'000});
  visitor.field(
      "truncate", options.truncate,
      "cut sequences into pieces of so many frames (or tokens), which carry the network's state on; 0: "
      "batches of whole sequences",
      {.min = 0, .max = 1'000'000});
  visitor.field(
      "sort_window", options.sort_window,
      "whole sequences: so many batches' worth of shuffled sequences are sorted by length, so that a "
      "batch holds similar ones",
      {.min = 1, .max = 1'000'000});
  visitor.section("speech", "recordings with aligned frames: `an4`",
                  [&](config::Visitor& inner) { fields(inner, options.speech); });
  visitor.section("text", "text from files: `text`, `ptb` and `wikitext2`",
                  [&](config::Visitor& inner) { fields(inner, options.text); });
  visitor.field("workers", options.workers,
                "threads of a rank that read samples; 0: as many as train.threads", {.min = 0, .max = 1024});
  visitor.field("prefetch", options.prefetch,
                "the number of batches that are made ready ahead, each with all its micro-batches",
                {.min = 1, .max = 1024});
  visitor.choice(
      "on_bad_sample", options.on_bad_sample, {{"error", OnBadSample::error}, {"skip", OnBadSample::skip}},
      "what happens if a sample cannot be read; error: the run stops and names it; skip: in training "
      "the next readable sample takes its place, in evaluation it does not count");
}

std::shared_ptr<const Dataset> open_dataset(const DataOptions& options, Split split) {
  const Entry* entry = find(options.dataset);
  if (!entry) throw ConfigError(fmt::format("data.dataset: '{}' is not known", options.dataset));
  if (options.shards.empty()) return entry->open(options, split);
  if (!entry->is_packable)
    throw ConfigError(
        fmt::format("data.shards: data set {} does not hold images from files", options.dataset));
  return open_shards(options, split);
}

bool is_packable(const std::string& dataset) {
  const Entry* entry = find(dataset);
  return entry && entry->is_packable;
}

bool is_sorted_by_class(const std::string& dataset) {
  const Entry* entry = find(dataset);
  return entry && entry->is_sorted_by_class;
}

bool has_images_of_any_size(const std::string& dataset) {
  return is_sorted_by_class(dataset);  // both are so of images in a folder per class
}

Normalization normalization(const DataOptions& options, std::int64_t channels) {
  Normalization out{options.mean, options.std};
  if (const Entry* entry = find(options.dataset)) {
    // `noise` is the same in every channel, however many there are.
    const auto fill = [&](std::vector<double>& values, const double(&own)[3]) {
      if (!values.empty()) return;
      if (entry->channels == 1 && channels == 3 && std::string_view(entry->name) != "noise") {
        values.assign(3, own[0]);  // a grey image is taken three times
        return;
      }
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
