// What the classes of a data set are called.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

/// Of the images' folders, or of the data set of this name, by label. Empty if classes have no names: those
/// of `noise`, sequences, and shards of `images` and `imagenet`.
std::vector<std::string> class_names(const std::string& dataset, const Dataset* opened = nullptr);

}  // namespace lpsgd
