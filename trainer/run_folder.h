// A run's folder: config.yaml (as resolved), environment.json, metrics.jsonl, summary.json, checkpoints/.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "trainer/folder_claim.h"
#include "trainer/metrics.h"
#include "trainer/run_config.h"

namespace lpsgd {

/// Cores this process may run on.
int usable_cores();

/// The numbers of these cores; empty if they cannot be found out.
std::vector<int> usable_core_numbers();

/// The threads of a rank: train.threads, or else the usable cores divided by the ranks that share the
/// machine.
int threads_of_rank(const TrainOptions& options, int local_ranks);

/// The folder of the run, held by this job during the object's lifetime. Rank 0 chooses its name (default:
/// runs/<name>-<time>) and makes it. A run that is refused before it wrote anything leaves no folder.
class RunFolder {
 public:
  /// Refuses a folder that another job uses, and without `resume` one that holds a run already. Collective:
  /// all ranks throw the same.
  RunFolder(Transport& transport, const RunConfig& run, const std::string& out, bool resume);

  const std::string& path() const { return path_; }  // the same on every rank

 private:
  std::unique_ptr<FolderClaim> claim_;  // on rank 0
  std::string path_;
};

/// Writes config.yaml and environment.json, after all checks have passed. `classes`: their names by label.
/// `device` and `algorithms` (Network::choices()): this rank's. Warns if a resumed deterministic run uses
/// other algorithms than before, and as warn_of_other_classes(). Collective.
void describe_run(Transport& transport, const std::string& folder, const RunConfig& run,
                  const std::vector<std::string>& classes, Device device,
                  const std::vector<std::string>& algorithms, const std::vector<std::string>& command_line);

/// The names of the classes that environment.json has, by label. Empty: it has none. FileError.
std::vector<std::string> recorded_classes(const std::string& folder);

/// Logs a warning if environment.json of the folder names a class otherwise than `classes`, by label, do.
/// Nothing is compared where one of them has no names.
void warn_of_other_classes(const std::string& folder, const std::vector<std::string>& classes);

/// The complete lines of metrics.jsonl.
std::vector<std::string> metrics_lines(const std::string& folder);

/// Removes summary.json, if there is one. FileError.
void remove_summary(const std::string& folder);

/// summary.json: the best and the last epoch, totals, codec and ranks. `rest`: what a run that was stopped
/// has done of the epoch that it was in; empty if all epochs are done. `branches`: NetworkBranches::times of
/// this rank.
void write_summary(const std::string& folder, const RunConfig& run, int ranks,
                   const std::vector<std::string>& records, const std::optional<EpochRecord>& rest,
                   const std::vector<std::string>& branches);

}  // namespace lpsgd
