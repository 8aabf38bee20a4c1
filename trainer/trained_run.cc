#include "trainer/trained_run.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/log.h"
#include "core/paths.h"
#include "data/class_names.h"
#include "trainer/checkpoint_list.h"
#include "trainer/run_folder.h"

namespace lpsgd {

namespace {

std::string find_weights(const std::string& run, const std::string& checkpoint) {
  if (checkpoint.empty()) return run;
  if (!is_checkpoint_name(checkpoint) || path_exists(checkpoint)) return checkpoint;
  const std::string folder = checkpoints_folder(run) + "/" + checkpoint;
  if (!path_exists(folder)) throw FileError(fmt::format("{}: no such checkpoint", folder));
  return folder;
}

std::vector<std::string> read_classes(const std::string& run, const RunConfig& config) {
  std::vector<std::string> recorded = recorded_classes(run);
  return recorded.empty() ? class_names(config.data.dataset) : recorded;
}

}  // namespace

TrainedRun open_trained_run(const std::string& run, const std::string& checkpoint,
                            const std::vector<std::string>& overrides) {
  const std::string config = run + "/config.yaml";
  if (!path_exists(config))
    throw ConfigError(fmt::format("{}: is not the folder of a run: it has no config.yaml", run));
  RunConfig loaded = load_run_config(config, overrides, config::Environment::if_set);
  loaded.train.freeze.clear();
  NetworkSpec network = network_of(loaded);
  std::vector<std::string> classes = read_classes(run, loaded);
  if (classes.size() != static_cast<std::size_t>(network.classes())) {
    if (!classes.empty())
      log::warn("{}: there are names of {} classes, but the network has {}: they are shown as numbers", run,
                classes.size(), network.classes());
    classes.clear();
  }
  std::string weights = find_weights(run, checkpoint);
  return {std::move(loaded), std::move(network), std::move(weights), std::move(classes)};
}

}  // namespace lpsgd
