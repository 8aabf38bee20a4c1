// The parts of `lpsgd bench loader` that run a whole Loader.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "data/dataset.h"

namespace lpsgd {

/// A loader with so many workers beside as many processes that have a loader with one worker each; both read
/// the same number of samples of shape `out`.
nlohmann::ordered_json measure_workers(const std::shared_ptr<const ImageDataset>& images,
                                       const DataOptions& data, const ImageShape& out, int workers,
                                       std::int64_t repeats);

/// Batches of 128 images of 32 x 32 pixels, padded by 4 and mirrored, on one worker, beside a copy of their
/// pixels.
nlohmann::ordered_json measure_cifar_batch(std::int64_t repeats);

}  // namespace lpsgd
