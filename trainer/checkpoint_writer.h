// Writes checkpoints beside training. A checkpoint is written beside its final path, synced, read back, then
// renamed: a crash or a full disk leaves the last one intact.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_manifest.h"

namespace lpsgd {

/// One rank's part of writing, one checkpoint at a time. A thread does the work of the disk; only the calls
/// here use the transport. There are two stages:
/// - every rank's thread checks that the state is finite, writes this rank's files and syncs them;
/// - rank 0's thread writes the manifest, reads all files back, renames the folder, removes old checkpoints.
/// advance() leads from one to the next. If the ranks call it when none of them is_busy(), it does not wait.
class CheckpointWriter {
 public:
  /// All but the newest `keep` checkpoints are removed once a new one stands.
  CheckpointWriter(Transport& transport, std::string run_folder, std::int64_t keep);
  /// Waits for the thread. A checkpoint in flight is left unfinished.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// These are neither counted nor removed as older ones, until one is written under the same name.
  void set_damaged(std::vector<std::string> names) { damaged_ = std::move(names); }

  /// Begins to write checkpoint `name`, with none in flight. `state` and `averaged` (the running statistics
  /// over ranks, for model.safetensors) stay unchanged until in_flight() is false. The manifest's `files` are
  /// filled in here. Collective; fails on all ranks or on none.
  void begin(const std::string& name, CheckpointManifest manifest, const TrainingState& state,
             const std::vector<NamedBuffer>& averaged);

  /// From begin() until advance() has returned the checkpoint or failed; the same on all ranks.
  bool in_flight() const { return stage_ != Stage::idle; }
  /// Whether this rank's thread is at work.
  bool is_busy() const;

  struct Written {
    std::string folder;
    double at = 0;  // when it stood, in seconds of now_seconds(); rank 0's
  };
  /// Waits for the stage that is running, and begins the next. Returns the checkpoint once it stands. Throws
  /// NonFiniteError if a value of the state is not finite, and SharedError if a rank cannot write; then the
  /// older checkpoints are as they were. Collective.
  std::optional<Written> advance();

 private:
  enum class Stage : std::uint8_t { idle, files, folder };
  /// What a rank's thread found.
  struct Files {
    std::string non_finite;    // the first value that is not finite; then nothing was written
    std::string model, state;  // checksums
  };

  Files write_files() const;
  double publish() const;
  void files_are_written();
  void abandon();

  Transport& transport_;
  const std::string run_folder_;
  const std::int64_t keep_;
  std::vector<std::string> damaged_;

  Stage stage_ = Stage::idle;
  std::string name_;
  CheckpointManifest manifest_;
  const TrainingState* state_ = nullptr;
  const std::vector<NamedBuffer>* averaged_ = nullptr;
  // Declared last: their destructors wait for the thread, which uses what is above.
  std::future<Files> files_;
  std::future<double> folder_;
};

}  // namespace lpsgd
