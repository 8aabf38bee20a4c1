// The data sets. Each function opens one split. The table in dataset.cc gives them their names.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lpsgd {

/// CIFAR-10 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009) from its original
/// binary files in `root`: data_batch_1.bin .. data_batch_5.bin and test_batch.bin. A record is one label
/// byte and 3072 pixels: 1024 red, 1024 green and 1024 blue ones, row by row. A file may hold any number of
/// whole records, but all six files must exist. 50,000 training and 10,000 test images of 32 x 32 x 3, ten
/// classes.
std::shared_ptr<const Dataset> open_cifar10(const DataOptions& options, Split split);

/// A generated data set, which needs no files: 32 x 32 x 3 images of ten shapes (shapes.cc). By default there
/// are 20,000 for training and 4,000 for testing. The label of sample i is i mod 10.
std::shared_ptr<const Dataset> open_shapes(const DataOptions& options, Split split);

/// Uniform random bytes, to measure time and memory (noise.cc). `data.image` is the size of the images and
/// `data.classes` the number of classes. By default there are 512 for training and 128 for testing.
std::shared_ptr<const Dataset> open_noise(const DataOptions& options, Split split);

}  // namespace lpsgd
