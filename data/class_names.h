// What the classes of a data set are called.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

/// As the images' folders or shards name them, or of the data set of this name, by label. Empty if classes
/// have no names: those of `noise`, of sequences, and of shards that were written without.
std::vector<std::string> class_names(const std::string& dataset, const Dataset* opened = nullptr);

}  // namespace lpsgd
