// A checkpoint's manifest.json: the run's position, its configuration, and a checksum per file
// (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/epoch_sums.h"
#include "trainer/sync_position.h"

namespace lpsgd {

/// A run's position: `step` steps in all, `epoch` finished epochs, `batch` batches of the current one.
struct Position {
  std::int64_t step = 0, epoch = 0, batch = 0;
  bool operator==(const Position&) const = default;
};

/// The files of a checkpoint, beside the manifest.
inline constexpr const char* model_file = "model.safetensors";
std::string state_file(int rank);  // "state-rank0001.safetensors"

struct CheckpointManifest {
  Position position;
  EpochSoFar so_far;
  std::uint32_t seed = 0;
  std::string optimizer;  // its kind; empty: not recorded
  int ranks = 1;
  std::int64_t batch_size = 0;                              // global
  std::int64_t batches = 0;                                 // of an epoch
  std::int64_t samples = 0;                                 // of the training set; 0: not recorded
  std::string lengths;                                      // checksum of its sequences' frames; empty: none
  std::vector<std::pair<std::string, std::string>> order;   // keys that decide the order of samples, values
  double lr = 0;                                            // of the next step
  bool halfway = false;                                     // not kept once a newer one stands
  std::int64_t exchange_ranks_per_block = 1;                // of collective hierarchical
  SyncPosition sync;                                        // where local steps are
  std::vector<std::pair<std::string, std::string>> codecs;  // tensor, codec
  std::vector<std::pair<std::string, std::string>> files;   // name, checksum
};

/// Reads only manifest.json. FileError if it is malformed or damaged.
CheckpointManifest read_manifest(const std::string& folder);
/// FileError unless the manifest names the file and its checksum is the manifest's.
void verify(const CheckpointManifest& manifest, const std::string& folder, const std::string& name);
/// As verify(), of every file that a checkpoint has.
void verify_all(const CheckpointManifest& manifest, const std::string& folder);
/// FileError.
void write_manifest(const std::string& folder, const CheckpointManifest& manifest);

}  // namespace lpsgd
