// Between loader and network: the options of both that a run's configuration gives, and batches as inputs.
#pragma once

#include <optional>

#include "core/device.h"
#include "data/loader.h"
#include "nn/network.h"
#include "trainer/run_config.h"
#include "trainer/sequence_counts.h"

namespace lpsgd {

/// The batches of `rank` of `ranks`.
BatchOptions batch_options(const RunConfig& run, const NetworkSpec& spec, int rank, int ranks, bool training);

/// `threads`: of this rank, for the default of data.workers.
LoaderOptions loader_options(const RunConfig& run, Device device, int threads, bool training);

/// How the network reads batches of this shape: nothing unless they hold pixels.
std::optional<PixelOptions> pixel_options(const RunConfig& run, const BatchShape& shape);

/// Valid as long as the batch. The loss of sequences is such that the mean gradient over `parts` parts of the
/// global batch, which are the micro-batches of all ranks, is that of the mean over its frames.
Samples samples_of(const Batch& batch, std::int64_t parts);

/// What a batch of sequences holds; zeros for images.
SequenceCounts sequences_in(const Batch& batch);

}  // namespace lpsgd
