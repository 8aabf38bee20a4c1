// What the configuration means for one rank of a training run: its part of the batches, its device, its
// threads.
#pragma once

#include <memory>

#include "comm/transport.h"
#include "core/trace.h"
#include "data/batch_source.h"
#include "data/loader.h"
#include "nn/network.h"
#include "trainer/run_config.h"

namespace lpsgd {

/// `shape`: of the batches that the rank trains. `trace` may be null.
NetworkOptions network_options(const RunConfig& run, const Transport& transport, const BatchShape& shape,
                               Trace* trace);

/// The rank's batches of the training or test set. Throws ConfigError, with the place in the configuration.
std::unique_ptr<BatchSource> batches_of(const std::shared_ptr<const Dataset>& dataset, const RunConfig& run,
                                        const NetworkSpec& spec, const Transport& transport, bool training);

LoaderOptions loader_options(const RunConfig& run, const Transport& transport, bool training);

}  // namespace lpsgd
