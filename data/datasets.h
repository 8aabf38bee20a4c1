// The data sets there are. Each function opens one split; dataset.cc's table gives them their names.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lpsgd {

/// CIFAR-10 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009) from its original
/// binary files in `root`: data_batch_1.bin .. data_batch_5.bin and test_batch.bin. A record is one label
/// byte and 3072 pixels: 1024 red, 1024 green, 1024 blue, row by row. Files may hold any whole number of
/// records, but all six must be there. 50,000 training and 10,000 test images, 32 x 32 x 3, ten classes.
std::shared_ptr<const Dataset> open_cifar10(const DataOptions& options, Split split, std::uint32_t seed);

/// A generated data set that needs no files: 32 x 32 x 3 images of ten shapes, by default 20,000 for training
/// and 4,000 for testing, label i mod 10. See shapes.cc.
std::shared_ptr<const Dataset> open_shapes(const DataOptions& options, Split split, std::uint32_t seed);

/// Uniform random bytes of the size that `data.image` asks, `data.classes` classes, by default 512 for
/// training and 128 for testing: for measuring time, not accuracy. See noise.cc.
std::shared_ptr<const Dataset> open_noise(const DataOptions& options, Split split, std::uint32_t seed);

}  // namespace lpsgd
