// Data sets: access to samples by number, as they are stored. The loader scales, augments and batches them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"

namespace lpsgd {

enum class Split : std::uint8_t { train, test };

/// Images of one size with one label each. There is at least one. All functions may be called from several
/// threads.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t classes() const = 0;
  virtual std::int64_t height() const = 0;
  virtual std::int64_t width() const = 0;
  virtual std::int64_t channels() const = 0;
  /// The pixels of sample i: (height, width, channels), 0..255. Valid as long as the data set.
  virtual std::span<const std::uint8_t> image(std::int64_t i) const = 0;
  virtual std::int32_t label(std::int64_t i) const = 0;
};

struct AugmentOptions {
  /// Adds so many black pixels on each side, and crops the original size at a random position. Black is 0
  /// before scaling, as in torchvision's RandomCrop on images.
  std::int64_t pad = 0;
  bool mirror = false;  // flip left-right with probability 1/2
};

struct DataOptions {
  std::string dataset;  // a name from the table in dataset.cc
  std::string root;     // the folder of the files; generated data sets do not use it
  bool shuffle = true;
  AugmentOptions augment;         // `augment: none` or {pad, mirror}
  std::vector<double> mean, std;  // per channel, of pixels / 255; empty: those of the data set
  /// How many samples to use: the first ones of a data set with files, or as many as a generated one shall
  /// make. 0: all, or the default number.
  std::int64_t train_samples = 0, test_samples = 0;
  std::vector<std::int64_t> image{224, 224, 3};  // `noise`: height, width, channels
  std::int64_t classes = 1000;                   // `noise`
};
void fields(config::Visitor& visitor, DataOptions& options);  // section `data`

/// Opens a data set. Throws FileError, which names the file, if a file is missing, truncated or malformed.
/// Throws ConfigError if the options ask for something that the data set does not have.
std::shared_ptr<const Dataset> open_dataset(const DataOptions& options, Split split);

/// How the pixels of each channel are scaled: (x/255 - mean)/std.
struct Normalization {
  std::vector<double> mean, std;
};
/// The mean and std of the options, or of the data set where the options have none. Throws ConfigError unless
/// there is one of each for every channel, all are finite, and every std is above 0.
Normalization normalization(const DataOptions& options, std::int64_t channels);

}  // namespace lpsgd
