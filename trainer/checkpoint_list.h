// The checkpoints of a run's folder: which are there, which verify, which are removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint_manifest.h"

namespace lpsgd {

/// "epoch-0012", "step-000390".
std::string epoch_checkpoint_name(std::int64_t epoch);
std::string step_checkpoint_name(std::int64_t step);
bool is_checkpoint_name(std::string_view name);

std::string checkpoints_folder(const std::string& run_folder);

/// Beside checkpoint `folder`: where it is put together, and the name under which it is removed. So a folder
/// with a checkpoint's name is always whole.
std::string folder_while_written(const std::string& folder);
std::string folder_while_removed(const std::string& folder);

/// A checkpoint to resume from.
struct ResumePoint {
  std::string folder;  // of the checkpoint
  CheckpointManifest manifest;
  bool verified = false;  // all of its files, by this process; or the model, if that was asked for
};

/// A folder with a checkpoint's name.
struct ListedCheckpoint {
  std::string folder;
  std::optional<CheckpointManifest> manifest;  // none if it cannot be read
  std::string error;                           // then why
};

/// All folders with a checkpoint's name in checkpoints/: those without a readable manifest first, then by
/// step. Files are not verified. FileError if checkpoints/ itself cannot be read.
std::vector<ListedCheckpoint> list_checkpoints(const std::string& run_folder);

/// A checkpoint that resuming leaves out.
struct PassedOver {
  std::string folder, why;
  std::string name() const;  // of the folder: "epoch-0003"
};
/// "runs/a/checkpoints/epoch-0003 is passed over: has no manifest.json"
std::string text(const PassedOver& one);

/// The files of a checkpoint that are compared with the manifest's checksums.
enum class VerifiedFiles : std::uint8_t { all, model };
/// The newest checkpoint of the run, by step, of which these files have the manifest's checksum; nullopt if
/// there is none. Newer ones are added to `passed_over`. Writes nothing. The run may be training: if it
/// removes checkpoints meanwhile, the newer ones are found.
std::optional<ResumePoint> find_resume_point(const std::string& run_folder,
                                             std::vector<PassedOver>* passed_over = nullptr,
                                             VerifiedFiles files = VerifiedFiles::all);

/// Removes what an interrupted save or removal left behind.
void remove_unfinished(const std::string& run_folder);
/// Removes all but the newest `keep` checkpoints up to and with the one named `newest`; of halfway ones,
/// which are not counted, all but `newest`. Leaves what has no readable manifest, and what is newer than
/// `newest`: a run that resumed from an older one has passed it over. What cannot be removed gives a warning.
/// Neither are those with a name of `damaged` counted or removed.
void remove_old_checkpoints(const std::string& run_folder, const std::string& newest, std::int64_t keep,
                            const std::vector<std::string>& damaged = {});

}  // namespace lpsgd
