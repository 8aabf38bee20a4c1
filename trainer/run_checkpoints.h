// When and how a run saves checkpoints and resumes from them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "trainer/checkpoint.h"
#include "trainer/epoch_sums.h"
#include "trainer/run_config.h"

namespace lpsgd {

/// Whether a checkpoint is due after `epoch` finished epochs of `epochs`.
bool is_checkpoint_due(const CheckpointOptions& options, std::int64_t epoch, std::int64_t epochs);

/// Whether one is due after `step` steps.
bool is_step_due(const CheckpointOptions& options, std::int64_t step);

/// What an epoch is made of. Another data set puts other samples into its places.
struct EpochContents {
  std::int64_t batches = 0, samples = 0;
  std::string lengths;  // checksum of each sequence's frames; empty: of no sequences
};
EpochContents epoch_contents(const Dataset& train, std::int64_t batches);

/// Where a resumed run continues.
struct Resumed {
  Position position;
  EpochSoFar so_far;
  bool other_ranks = false;  // the checkpoint is of another number of ranks
};

/// The checkpoints of one rank's run.
class RunCheckpoints {
 public:
  /// `run_folder`: the run's. The references outlive the object.
  RunCheckpoints(std::string run_folder, const RunConfig& run, EpochContents epoch,
                 const std::vector<CodecSpec>& codecs, Transport& transport, Network& network,
                 Optimizer& optimizer);

  /// Restores weights, momentum and running statistics, and passes the residuals to `set_residuals`. Refuses
  /// a checkpoint of another seed, network or codec, and one from within an epoch if its contents or a key
  /// that decides the order of samples have changed. Collective; fails on all ranks with one message.
  Resumed restore(const ResumePoint& from, const std::function<void(const ExchangeState&)>& set_residuals);

  /// `lr`: of the next step; `so_far`: of the current epoch, ignored between epochs. NonFiniteError if a
  /// value of the state is not finite. Collective.
  void save(const std::string& name, const Position& position, EpochSoFar so_far, double lr,
            const ExchangeState& residuals);

  /// NonFiniteError if a weight or a running statistic is not finite, after `steps` steps. Collective.
  void check_finite(std::int64_t steps);

  /// The newest checkpoint's folder: saved by this object, or the one it resumed from.
  const std::optional<std::string>& newest() const { return newest_; }

 private:
  std::string run_folder_;
  const RunConfig& run_;
  EpochContents epoch_;
  const std::vector<CodecSpec>& codecs_;
  Transport& transport_;
  Network& network_;
  Optimizer& optimizer_;
  std::optional<std::string> newest_;
};

}  // namespace lpsgd
