// The network that a run has trained, as its folder describes it, for commands that use it.
#pragma once

#include <string>
#include <vector>

#include "trainer/run_config.h"

namespace lpsgd {

struct TrainedRun {
  RunConfig config;  // as the run's config.yaml has it, with overrides
  NetworkSpec network;
  std::string weights;               // what read_weights() takes
  std::vector<std::string> classes;  // their names by label; empty: they have none
};

/// `run` is the run's folder. `checkpoint` is a checkpoint of the run ("epoch-0010"), the folder of a
/// checkpoint, a run's folder or a .safetensors file; empty: the run's newest one that verifies. ConfigError
/// if there is no run, FileError if there is no such checkpoint.
TrainedRun open_trained_run(const std::string& run, const std::string& checkpoint,
                            const std::vector<std::string>& overrides);

}  // namespace lpsgd
