// Batches in parts, for gradient accumulation.
#pragma once

#include <memory>

#include "data/batch_source.h"

namespace lpsgd {

/// The batches of `whole`, each in `parts` contiguous parts of equally many samples, one after the other.
/// Error if the parts do not divide a batch's samples.
std::unique_ptr<BatchSource> make_micro_batches(std::unique_ptr<BatchSource> whole, std::int64_t parts);

}  // namespace lpsgd
