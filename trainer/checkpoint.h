// Checkpoints: a folder checkpoints/epoch-NNNN (or step-NNNNNN) with model.safetensors, one
// state-rankNNNN.safetensors a rank and manifest.json (docs/checkpoints.md). Written beside, synced, then
// renamed: a crash or a full disk leaves the last one standing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "nn/network.h"
#include "trainer/metrics.h"

namespace lpsgd {

/// How far a run is: `step` steps in all, `epoch` finished epochs, `batch` batches of the running one.
struct Position {
  std::int64_t step = 0, epoch = 0, batch = 0;
};

/// What the running epoch has gathered so far, so that its record is whole after a resume.
struct EpochSoFar {
  std::vector<BatchMetrics> train;  // of each rank
  SecondsOfRanks seconds;
  std::uint64_t bytes_sent = 0, bytes_fp32 = 0;
};

/// One rank's training state, as views and copies.
struct TrainingState {
  const std::vector<TensorInfo>* tensors = nullptr;
  std::span<float> parameters, momentum;  // arenas
  std::vector<NamedBuffer> buffers;       // this rank's own running statistics
  ExchangeState residuals;
};

struct CheckpointMeta {
  Position position;
  EpochSoFar so_far;
  std::uint32_t seed = 0;
  int ranks = 1;
  std::int64_t batch_size = 0;
  std::int64_t batches = 0;         // of an epoch
  double lr = 0;                    // of the next step
  std::vector<std::string> codecs;  // per tensor
};

class CheckpointFolder {
 public:
  /// `root`: the run's folder. Nothing is touched yet.
  explicit CheckpointFolder(std::string root) : root_(std::move(root) + "/checkpoints") {}

  /// The newest complete checkpoint's folder, if any. FileError when a manifest is malformed.
  std::optional<std::string> newest() const;

  /// Writes a checkpoint named `name` and removes all but the newest `keep`. `averaged` are the running
  /// statistics averaged over ranks, for model.safetensors. Collective; fails together.
  void write(Transport& transport, const std::string& name, const CheckpointMeta& meta,
             const TrainingState& state, const std::vector<NamedBuffer>& averaged, std::int64_t keep) const;

 private:
  std::string root_;
};

/// "epoch-0012", "step-000390".
std::string epoch_checkpoint_name(std::int64_t epoch);
std::string step_checkpoint_name(std::int64_t step);

/// Reads manifest.json alone. FileError.
CheckpointMeta read_manifest(const std::string& folder);

/// Restores this rank's state: weights, momentum, running statistics, and the residuals into state.residuals.
/// With another number of ranks than the checkpoint's, round-1 residuals become the mean of the old ones,
/// round-2 residuals are cut anew, running statistics are averaged; returns whether that was so. FileError
/// when a file is missing, damaged (checksum) or of another network or codec.
bool read_checkpoint(const std::string& folder, const CheckpointMeta& meta, int rank, int ranks,
                     const std::vector<CodecSpec>& codecs, TrainingState& state);

/// Reads model.safetensors alone into the arena and the buffers (PyTorch's layout -> memory order).
/// FileError.
void read_model(const std::string& path, const std::vector<TensorInfo>& tensors, std::span<float> parameters,
                const std::vector<NamedBuffer>& buffers);

/// The weights of a checkpoint's folder, or of the newest checkpoint in a run's folder; the checksum is
/// compared where there is a manifest. FileError.
void read_checkpoint_model(const std::string& folder, const std::vector<TensorInfo>& tensors,
                           std::span<float> parameters, const std::vector<NamedBuffer>& buffers);

}  // namespace lpsgd
