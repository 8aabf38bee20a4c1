// Checkpoints: a folder checkpoints/epoch-NNNN (or step-NNNNNN) with model.safetensors, one
// state-rankNNNN.safetensors per rank and manifest.json (docs/checkpoints.md). This is their content and how
// they are read; trainer/checkpoint_writer.h writes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "nn/network.h"
#include "trainer/checkpoint_list.h"
#include "trainer/checkpoint_manifest.h"

namespace lpsgd {

/// One rank's training state, as views of host memory.
struct TrainingState {
  const std::vector<TensorInfo>* tensors = nullptr;
  std::span<float> parameters, momentum;  // arenas
  std::vector<NamedBuffer> buffers;       // this rank's own running statistics
  ResidualViews residuals;
  /// Inside an epoch, what this rank's recurrent layers carry to the next batch: a row for each of its
  /// positions of the global batch.
  std::vector<NamedBuffer> carried = {};
};

/// Restores this rank's weights, momentum, running statistics and carried state into what `state` views, and
/// its residuals into `residuals`.
/// With another number of ranks than the checkpoint's, round-1 residuals become the mean of the old ones,
/// round-2 residuals are redistributed, running statistics averaged, and carried state follows its positions
/// of the global batch; returns whether that was done. FileError if a file is missing, damaged (checksum) or
/// of another network or codec.
bool read_checkpoint(const ResumePoint& from, int rank, int ranks, const std::vector<CodecSpec>& codecs,
                     const TrainingState& state, ExchangeState& residuals);

/// The weights and running statistics of a checkpoint's folder, or of the newest checkpoint that verifies in
/// a run's folder (PyTorch's layout -> memory order). The checksum is compared if there is a manifest. Warns
/// of checkpoints that it passes over. FileError.
void read_checkpoint_model(const std::string& folder, const std::vector<TensorInfo>& tensors,
                           std::span<float> parameters, const std::vector<NamedBuffer>& buffers);

}  // namespace lpsgd
