// The training loop of one rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "trainer/checkpoint.h"
#include "trainer/progress.h"
#include "trainer/run_config.h"
#include "trainer/run_data.h"
#include "trainer/weights.h"

namespace lpsgd {

/// The options of `lpsgd train` beside the configuration.
struct TrainCommand {
  std::string out;                    // the run's folder, the same on every rank; made and checked already
  std::optional<std::int64_t> steps;  // stop after so many steps in all, without evaluation
  std::optional<ResumePoint> resume;  // without it the run starts from `init`, or from random weights
  std::vector<std::string> damaged;   // on rank 0: the checkpoints of the folder that were passed over
  const Weights* init = nullptr;      // outlives the run
  std::vector<std::string> command_line;
  std::int64_t check_replicas = 0;  // steps between comparisons; 0: none
  std::string trace;                // a folder for one Chrome trace per rank; empty: none
  ProgressMode progress = ProgressMode::automatic;
};

/// Trains on this rank until the configured epochs (or steps) are done, or until a signal has been caught on
/// a rank (trainer/stop_signals.h): then the run saves and ends. Returns that signal, or 0; the same on all
/// ranks. Collective. Rank 0 writes the run's files and the progress. Throws SharedError for failures of all
/// ranks, other errors for failures of this one. A SharedError is thrown only after every rank has ended its
/// work.
int train_rank(const RunConfig& run, const TrainCommand& command, const TrainData& data,
               const NetworkSpec& spec, Transport& transport);

}  // namespace lpsgd
