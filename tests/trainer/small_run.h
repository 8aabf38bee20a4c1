// A run that is small enough for a unit test: its configuration, its data, a rank's model, a folder.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "data/loader.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "tests/core/temporary_folder.h"
#include "trainer/run_config.h"

namespace lpsgd {

/// A convolution, a batch norm and a dense layer on images of 8 x 8 x 3 in 3 classes; global batches of 12,
/// codec onebit with error feedback on every tensor.
RunConfig small_run(const std::vector<std::string>& overrides = {});

/// `size` images of their own pixels and labels, the same on each call. Those with numbers in `bad` cannot be
/// read.
std::shared_ptr<const Dataset> small_dataset(std::int64_t size, std::set<std::int64_t> bad = {});

/// What one rank trains.
struct SmallModel {
  /// `rank` of `ranks`.
  SmallModel(const RunConfig& run, int rank, int ranks);

  NetworkSpec spec;
  std::vector<CodecSpec> codecs;
  Network network;
  Optimizer optimizer;
};

/// The loader of a rank's training data.
std::unique_ptr<Loader> small_loader(const RunConfig& run, std::int64_t samples, int rank, int ranks,
                                     bool training = true);

/// A copy of the values.
std::vector<float> values(std::span<const float> from);

}  // namespace lpsgd
