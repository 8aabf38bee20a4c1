// Images of a data set, for tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

inline std::shared_ptr<const ImageDataset> open_images(const DataOptions& options, Split split) {
  return std::dynamic_pointer_cast<const ImageDataset>(open_dataset(options, split));
}

/// The pixels of a data set that holds them in memory.
inline std::span<const std::uint8_t> pixels_of(const ImageDataset& set, std::int64_t i) {
  std::vector<std::uint8_t> unused;
  return set.image(i, unused).bytes;
}

}  // namespace lpsgd
