// When and how a run saves checkpoints and resumes from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "nn/network.h"
#include "trainer/averaged_weights.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_writer.h"
#include "trainer/epoch_sums.h"
#include "trainer/run_config.h"
#include "trainer/state_snapshot.h"
#include "trainer/synchronous_step.h"

namespace lpsgd {

/// Whether a checkpoint is due after `epoch` finished epochs of `epochs`.
bool is_checkpoint_due(const CheckpointOptions& options, std::int64_t epoch, std::int64_t epochs);

/// Whether one is due after `step` steps.
bool is_step_due(const CheckpointOptions& options, std::int64_t step);
/// Whether a halfway checkpoint is: each is written before the next copy is taken, so that two are never more
/// than `every_steps` behind. It is removed once the next one stands.
bool is_halfway_due(const CheckpointOptions& options, std::int64_t step);

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

/// A checkpoint that has been written.
struct SavedCheckpoint {
  std::string name;
  double waited = 0;   // seconds in which this rank's training waited for it
  double written = 0;  // seconds from its begin until it stood, on rank 0
};
/// "checkpoint epoch-0010: training waited 0.21 s, written in 3.05 s"
std::string text(const SavedCheckpoint& saved);

/// The checkpoints of one rank's run, which are written beside training (trainer/checkpoint_writer.h).
class RunCheckpoints {
 public:
  /// `run_folder`: the run's. Allocates the memory of a snapshot. The references outlive the object.
  RunCheckpoints(std::string run_folder, const RunConfig& run, EpochContents epoch,
                 const std::vector<CodecSpec>& codecs, Transport& transport, Network& network,
                 SynchronousStep& step);

  /// See CheckpointWriter::set_damaged().
  void set_damaged(std::vector<std::string> names) { writer_.set_damaged(std::move(names)); }

  /// Restores weights, momentum, running statistics and residuals. Refuses a checkpoint of another seed,
  /// network or codec, and one from within an epoch if its contents or a key that decides the order of
  /// samples have changed. Collective; fails on all ranks with one message.
  Resumed restore(const ResumePoint& from);

  /// Copies the state and begins to write it, with no checkpoint in flight. `lr`: of the next step; `so_far`:
  /// of the current epoch, ignored between epochs; `waited`: seconds for which training has waited for it
  /// already; `weights`: the model's, if the ranks' differ; `halfway`: see is_halfway_due(). Collective.
  void begin(const std::string& name, const Position& position, EpochSoFar so_far, double lr,
             double waited = 0, const AveragedWeights* weights = nullptr, bool halfway = false);
  /// See CheckpointWriter.
  bool in_flight() const { return writer_.in_flight(); }
  bool is_busy() const { return writer_.is_busy(); }
  /// Goes on with the checkpoint in flight, if there is one; returns it when it stands. NonFiniteError,
  /// SharedError: see CheckpointWriter. Collective; waits only if a rank is_busy().
  std::optional<SavedCheckpoint> advance();
  /// Waits for the checkpoint in flight, if there is one. Collective.
  std::optional<SavedCheckpoint> finish();

  /// NonFiniteError if a weight or a running statistic is not finite, after `steps` steps. Collective.
  void check_finite(std::int64_t steps);

  /// The newest checkpoint's folder that stands: saved by this object, or the one it resumed from.
  const std::optional<std::string>& newest() const { return newest_; }

 private:
  /// Whether a mean that was on its way is of no use to this run.
  bool drops_pending(const CheckpointManifest& manifest) const;

  std::string run_folder_;
  const RunConfig& run_;
  EpochContents epoch_;
  const std::vector<CodecSpec>& codecs_;
  Transport& transport_;
  Network& network_;
  SynchronousStep& step_;
  std::optional<std::string> newest_;
  SavedCheckpoint saving_;
  double began_ = 0;
  StateSnapshot snapshot_;
  CheckpointWriter writer_;  // destroyed before the snapshot that its thread reads
};

}  // namespace lpsgd
