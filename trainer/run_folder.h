// A run's folder: config.yaml (as resolved), environment.json, metrics.jsonl, summary.json, checkpoints/.
#pragma once

#include <string>
#include <vector>

#include "comm/transport.h"
#include "trainer/run_config.h"

namespace lpsgd {

/// Cores this process may run on.
int usable_cores();

/// Chooses and makes the folder on rank 0 (default: runs/<name>-<time>) and returns its path on every rank. A
/// folder that holds a run already is refused unless `resume`. Collective.
std::string open_run_folder(Transport& transport, const RunConfig& run, const std::string& out, bool resume);

/// Writes config.yaml and environment.json, once nothing can be refused any more. `device` and `algorithms`
/// (Network::choices()): this rank's. Warns where a deterministic run that goes on would run other algorithms
/// than before. Collective.
void describe_run(Transport& transport, const std::string& folder, const RunConfig& run, Device device,
                  const std::vector<std::string>& algorithms, const std::vector<std::string>& command_line);

/// The complete lines of metrics.jsonl.
std::vector<std::string> metrics_lines(const std::string& folder);

/// summary.json: the best and the last epoch, totals, codec and ranks.
void write_summary(const std::string& folder, const RunConfig& run, int ranks,
                   const std::vector<std::string>& records);

}  // namespace lpsgd
