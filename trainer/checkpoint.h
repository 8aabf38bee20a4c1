// Checkpoints: a folder checkpoints/epoch-NNNN (or step-NNNNNN) with model.safetensors, one
// state-rankNNNN.safetensors per rank and manifest.json (docs/checkpoints.md). This is their content and how
// they are read; trainer/checkpoint_writer.h writes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/name_patterns.h"
#include "core/safetensors.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "trainer/checkpoint_list.h"
#include "trainer/checkpoint_manifest.h"

namespace lpsgd {

/// One rank's training state, as views of host memory.
struct TrainingState {
  const std::vector<TensorInfo>* tensors = nullptr;
  std::span<float> parameters;       // an arena
  std::vector<NamedArena> arenas;    // momentum and the like
  std::vector<NamedBuffer> buffers;  // this rank's own running statistics
  ResidualViews residuals;
  ResidualLayout residual_layout = {};
  std::int64_t ranks_per_block = 0;    // of hierarchical_local_sgd
  ResidualLayout block_layout = {};    // then: of a rank's block
  ResidualViews block_residuals = {};  // of the exchange within a block; empty: there is none
  /// Inside an epoch, what this rank's recurrent layers carry to the next batch: a row for each of its
  /// positions of the global batch.
  std::vector<NamedBuffer> carried = {};
  TensorArena frozen = {};  // tensors that are not trained
};

/// Of all weights: the frozen ones, and those that are trained.
std::vector<TensorArena> arenas_of(const TrainingState& state);

/// What read_checkpoint() had to change.
struct CheckpointRead {
  bool other_ranks = false;   // the checkpoint is of another number of ranks
  bool other_blocks = false;  // the exchange's blocks of ranks are others
  bool other_round2 = false;  // residuals of round 2 start from zero, or are dropped
  bool averaged = false;      // each old rank had weights and momentum of its own, and they are no longer
  /// Residuals of changes of weights, which a run that exchanges gradients starts without.
  bool dropped_residuals = false;
  std::size_t new_codecs = 0;  // tensors with another codec than before, which had no residual
};

/// Restores this rank's weights, arenas, running statistics and carried state into what `state` views, and
/// its residuals into `residuals`. Residuals within blocks are this rank's, or left empty where each rank's
/// do not go on.
/// With another number of ranks than the checkpoint's, or other blocks of the exchange, round-1 residuals
/// become the mean of the old ones, round-2 residuals are redistributed. With another number of ranks running
/// statistics averaged, and carried state follows its positions of the global batch. FileError if a file is
/// missing, damaged (checksum) or of another network or codec. A file is verified when it is first read,
/// unless `from` was. Arenas that each rank has of its own become the mean of the old ones, or the average
/// weights, also if the checkpoint's run had no such arenas; and so do those that each rank had of its own in
/// the checkpoint's run only.
CheckpointRead read_checkpoint(const ResumePoint& from, int rank, const std::vector<CodecSpec>& codecs,
                               const TrainingState& state, ExchangeState& residuals,
                               ExchangeState* block_residuals = nullptr);

/// A file of weights and running statistics.
struct ModelFile {
  std::string path;
  std::string found_in;  // the file, or the checkpoint's folder
};

/// That of a file, of a checkpoint's folder, or of the newest checkpoint that verifies in a run's folder. The
/// checksum is compared if there is a manifest. Warns of checkpoints that it passes over. FileError.
ModelFile find_model(const std::string& path);

/// A tensor that the network or the file lacks, or that has another shape.
class UnfitTensorError : public ConfigError {
 public:
  UnfitTensorError(const std::string& what, std::string tensor)
      : ConfigError(what), tensor_(std::move(tensor)) {}
  const std::string& tensor() const { return tensor_; }

 private:
  std::string tensor_;
};

/// Reads the weights, frozen ones too, and running statistics (PyTorch's layout -> memory order). The file
/// must hold each of them, and no other: otherwise UnfitTensorError. Tensors with a name of `skip` are left
/// as they are, whatever the file holds.
void read_model(const SafetensorsFile& file, const TrainingState& to, const NamePatterns& skip = {});

}  // namespace lpsgd
