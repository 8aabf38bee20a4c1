// Data sets: samples by number, as stored. Scaling, augmentation and batching are the loader's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"

namespace lpsgd {

enum class Split : std::uint8_t { train, test };

/// Images of one size with one label each. Thread-safe once made; never empty.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t classes() const = 0;
  virtual std::int64_t height() const = 0;
  virtual std::int64_t width() const = 0;
  virtual std::int64_t channels() const = 0;
  /// Pixels of sample i: (height, width, channels), 0..255.
  virtual std::span<const std::uint8_t> image(std::int64_t i) const = 0;
  virtual std::int32_t label(std::int64_t i) const = 0;
};

struct AugmentOptions {
  std::int64_t pad = 0;  // black pixels (raw 0, so -mean/std once scaled, as torchvision's RandomCrop on
                         // images) on each side, then a crop of the original size at random
  bool mirror = false;   // flip left-right with probability 1/2
};

struct DataOptions {
  std::string dataset;  // a name of the table in dataset.cc
  std::string root;     // folder of the files; unused by generated data sets
  bool shuffle = true;
  AugmentOptions augment;         // `augment: none` or {pad, mirror}
  std::vector<double> mean, std;  // per channel, of pixels / 255; empty: the data set's own default
  std::int64_t train_samples = 0,
               test_samples = 0;  // generated: how many to make; others: use only the first; 0: all
  std::vector<std::int64_t> image{224, 224, 3};  // `noise`: height, width, channels
  std::int64_t classes = 1000;                   // `noise`
};
void fields(config::Visitor& visitor, DataOptions& options);  // section `data`

/// Opens a data set: FileError when its files are missing, truncated or malformed (naming the file);
/// ConfigError when the options ask for what it does not have. `seed` is for data sets that the run's seed
/// changes; the built-in ones are the same for every seed.
std::shared_ptr<const Dataset> open_dataset(const DataOptions& options, Split split, std::uint32_t seed);

/// What a channel's pixels are scaled with: (x/255 - mean)/std.
struct Normalization {
  std::vector<double> mean, std;
};
/// The options' mean and std, or where empty the data set's own. ConfigError unless there is one of each per
/// channel, finite, and every std is above 0.
Normalization normalization(const DataOptions& options, std::int64_t channels);

}  // namespace lpsgd
