// Evaluation: each sample of a split once, whatever the number of ranks.
#pragma once

#include <vector>

#include "comm/transport.h"
#include "core/buffer.h"
#include "data/loader.h"
#include "nn/network.h"

namespace lpsgd {

/// The running statistics averaged over ranks (mean and variance alike, in rank order, times 1/K): a copy, so
/// that each rank goes on with its own.
class AveragedBuffers {
 public:
  /// Collective.
  AveragedBuffers(Transport& transport, Network& network);
  /// The averaged values, named and shaped as the network's.
  const std::vector<NamedBuffer>& buffers() const { return averaged_; }

 private:
  std::vector<NamedBuffer> averaged_;  // before values_: made while values_ is
  Buffer<float> values_;
};

/// Sums over this rank's part of the loader's data, with the running statistics `with`, on the host, in place
/// of the network's own, which are restored.
BatchMetrics evaluate(Network& network, Loader& loader, const std::vector<NamedBuffer>& with);

}  // namespace lpsgd
