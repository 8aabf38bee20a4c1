// Data sets: access to samples by number, as they are stored. The loader augments and batches them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/pixels.h"
#include "data/image_transform.h"
#include "data/sequence_options.h"

namespace lpsgd {

enum class Split : std::uint8_t { train, test };

/// Samples, numbered from 0. There is at least one. All functions may be called from several threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t classes() const = 0;
  /// What messages call sample i: a path, or "record 7 of PATH".
  virtual std::string name(std::int64_t i) const = 0;
};

/// An image as it is stored.
struct StoredImage {
  std::span<const std::uint8_t> bytes;  // pixels (H, W, C), or a file's content (JPEG, PNG, ...)
  std::optional<ImageShape> shape;      // of pixels; nothing: a file's content
};

/// Images with one label each.
class ImageDataset : public Dataset {
 public:
  /// From 0 to classes() - 1.
  virtual std::int32_t label(std::int64_t i) const = 0;
  /// The shape of all images if they are stored as pixels of one size; of three channels if some have one and
  /// some three. Nothing: files, or several sizes.
  virtual std::optional<ImageShape> fixed_shape() const { return std::nullopt; }
  /// The bytes lie in the data set, or in `file` until the next call with it. FileError.
  virtual StoredImage image(std::int64_t i, std::vector<std::uint8_t>& file) const = 0;
  /// By label; empty if the files do not name the classes.
  virtual std::vector<std::string> class_names() const { return {}; }
  /// XXH3-64 of an image's bytes, where it is stored beside them; image() checks it.
  virtual std::optional<std::uint64_t> stored_checksum(std::int64_t) const { return std::nullopt; }
};

/// Sequences of feature vectors with one label a frame.
class SequenceDataset : public Dataset {
 public:
  virtual std::int64_t features() const = 0;
  /// How features were normalised: one mean and one deviation for each that a frame has by itself. Empty: not
  /// at all.
  virtual Normalization normalization() const { return {}; }
  /// Of the files' bytes that features were made of. (Features may be rounded otherwise on other processors.)
  virtual std::uint64_t content_checksum() const { return 0; }
  virtual std::int64_t frames(std::int64_t i) const = 0;
  /// Writes `count` frames of sequence i from frame `first` on: (count, features) and (count) labels.
  virtual void read(std::int64_t i, std::int64_t first, std::int64_t count, float* features,
                    std::int32_t* labels) const = 0;
};

/// A text as the numbers of its tokens, each below classes(). A sample is a token that has a next one.
class TextDataset : public Dataset {
 public:
  virtual std::span<const std::int32_t> tokens() const = 0;
};

/// What happens if a sample cannot be read.
enum class OnBadSample : std::uint8_t {
  error,  // the run stops with the sample's error
  skip    // in training the next readable sample takes its place, in evaluation it does not count
};

struct DataOptions {
  std::string dataset;  // a name from the table in dataset.cc
  std::string root;     // the folder of the files; generated data sets do not use it
  std::string shards;   // a shard, or a folder of shards, that holds the data set; then `root` is not used
  std::string train_folder, test_folder;  // in `root`, for `images` and `imagenet`; empty: the usual names
  bool shuffle = true;
  AugmentOptions augment;  // `augment: none` or {pad, mirror, crop, jitter, pca}
  EvaluateOptions evaluate;
  Interpolation interpolation = Interpolation::linear;
  /// Per channel, of pixels / 255, or per feature of a frame; empty: those of the data set.
  std::vector<double> mean, std;
  /// How many samples to use of a data set with files, or how many a generated one shall make. 0: all, or the
  /// default number. Of files the first ones are used, and of folders sorted by class (`images`, `imagenet`)
  /// samples that are evenly spaced. A shard follows the rule of the data set that it holds.
  std::int64_t train_samples = 0, test_samples = 0;
  std::vector<std::int64_t> image{224, 224, 3};  // `noise`: height, width, channels
  std::int64_t classes = 1000;                   // `noise`
  std::int64_t truncate = 0;      // cut sequences into pieces of so many frames; 0: whole sequences
  std::int64_t sort_window = 32;  // batches; data/sequence_plan.h
  SpeechOptions speech;
  TextOptions text;
  std::int64_t workers = 0;   // threads that fill batches, per rank; 0: as many as train.threads
  std::int64_t prefetch = 3;  // batches that may be ready ahead
  OnBadSample on_bad_sample = OnBadSample::error;
};
void fields(config::Visitor& visitor, DataOptions& options);  // section `data`

/// Opens a data set. Throws FileError, which names the file, if a file is missing, truncated or malformed.
/// Throws ConfigError if the options ask for something that the data set does not have.
std::shared_ptr<const Dataset> open_dataset(const DataOptions& options, Split split);

/// Whether the data set of this name holds images from files. Only such can be packed into shards.
bool is_packable(const std::string& dataset);

/// Whether the data set of this name has its samples in the order of their classes, so that the first ones
/// would be those of a few classes.
bool is_sorted_by_class(const std::string& dataset);

/// Whether the images of the data set of this name may have any size. All others have one size each.
bool has_images_of_any_size(const std::string& dataset);

/// The mean and std of the options, or of the data set where the options have none. Throws ConfigError unless
/// there is one of each for every channel, all are finite, and every std is above 0.
Normalization normalization(const DataOptions& options, std::int64_t channels);

}  // namespace lpsgd
