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

/// CIFAR-100, of the same origin: train.bin and test.bin. A record is two label bytes, the coarse one (0 to
/// 19) and the fine one (0 to 99), which is used, and pixels as in CIFAR-10.
std::shared_ptr<const Dataset> open_cifar100(const DataOptions& options, Split split);

/// MNIST (LeCun, Cortes, Burges) or Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) from the original four files
/// in `root`, such as train-images-idx3-ubyte, plain or gzip: images of 28 x 28 x 1, ten classes.
std::shared_ptr<const Dataset> open_mnist(const DataOptions& options, Split split);

/// Any images in a folder per class, in `root`/train and `root`/val or, without val, `root`/test;
/// `train_folder` and `test_folder` name others. Classes are the folders' names, sorted, and must be the same
/// in both.
std::shared_ptr<const Dataset> open_image_folders(const DataOptions& options, Split split);

/// ImageNet (Russakovsky and others, "ImageNet Large Scale Visual Recognition Challenge", 2015). In `root`,
/// for training: train/n01440764/..., or ILSVRC2012_img_train.tar, which is read in place. For testing:
/// val/n01440764/..., or the images in val/ or ILSVRC2012_img_val.tar and a list of their labels
/// (data/imagenet_labels.h). Classes are the WNIDs of the training images, sorted.
std::shared_ptr<const Dataset> open_imagenet(const DataOptions& options, Split split);

/// A generated data set, which needs no files: 32 x 32 x 3 images of ten shapes (shapes.cc). By default there
/// are 20,000 for training and 4,000 for testing. The label of sample i is i mod 10.
std::shared_ptr<const Dataset> open_shapes(const DataOptions& options, Split split);

/// Uniform random bytes, to measure time and memory (noise.cc). `data.image` is the size of the images and
/// `data.classes` the number of classes. By default there are 512 for training and 128 for testing.
std::shared_ptr<const Dataset> open_noise(const DataOptions& options, Split split);

}  // namespace lpsgd
