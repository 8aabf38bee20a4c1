// Evaluation: each sample of a split once, whatever the number of ranks.
#pragma once

#include <functional>
#include <vector>

#include "comm/transport.h"
#include "core/buffer.h"
#include "data/loader.h"
#include "nn/network.h"
#include "trainer/bad_samples.h"
#include "trainer/run_config.h"

namespace lpsgd {

/// A copy of the running statistics, averaged over ranks (mean and variance alike, in rank order, times 1/K).
/// Each rank keeps its own.
class AveragedBuffers {
 public:
  /// Collective.
  AveragedBuffers(Transport& transport, Network& network);
  /// The averaged values, named and shaped as the network's.
  const std::vector<NamedBuffer>& buffers() const { return averaged_; }

 private:
  std::vector<NamedBuffer> averaged_;  // before values_, whose initialiser fills it
  Buffer<float> values_;
};

/// Loss and hits over this rank's part of the loader's data. It uses the running statistics `with`, in host
/// memory, and then restores the network's own. Adds samples that could not be read to `bad`. `go_on` is
/// called after each batch; if it returns false, the batches that are left are left out. Throws FileError for
/// a sample that cannot be read, and has then restored the statistics, too.
BatchMetrics evaluate(Network& network, Loader& loader, const std::vector<NamedBuffer>& with,
                      BadSamples* bad = nullptr, const std::function<bool()>& go_on = {});

/// A network that only evaluates, in batches of this shape.
NetworkOptions inference_options(const RunConfig& run, Device device, int threads, const BatchShape& shape);

/// Runs `body`, which reads from a Loader of this process alone. After a StalledError it prints the message
/// and ends the process with 1: the loader's destructor would wait for the thread that hangs.
void end_if_stalled(const std::function<void()>& body);

}  // namespace lpsgd
