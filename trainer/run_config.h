// A run's configuration: every key of `lpsgd train`, as plain structs. Defaults are given at the fields; each
// struct's fields() declares keys and help once, for reading, for config.yaml in the run's folder and for the
// docs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/exchange.h"
#include "core/config.h"
#include "data/dataset.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "nn/schedule.h"
#include "trainer/run_options.h"
#include "trainer/sync_options.h"

namespace lpsgd {

struct RunConfig {
  config::Value network;  // the network's own tree, read by NetworkSpec
  DataOptions data;
  TrainOptions train;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  ExchangeConfig exchange;
  SyncOptions sync;
  CheckpointOptions checkpoint;
  MetricsOptions metrics;

  /// What config.yaml in the run's folder says in place of `data.evaluate: auto`.
  std::optional<EvaluateOptions> recorded_evaluate = {};

  std::string name;                    // the file's name without folder and extension
  config::Value tree;                  // as written, overrides applied, the network in place of its path
  std::vector<std::string> overrides;  // as given to --set
};

void fields(config::Visitor& visitor, RunConfig& run);

/// Reads CONFIG, replaces a network path by the file it names (relative to CONFIG's folder), applies the
/// overrides, and checks every key. With Environment::if_set unset variables in strings are no error.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          config::Environment environment);

/// As load_run_config, but CONFIG needs no data, and may be a bare network file, which gets every other key's
/// default and no codec.
RunConfig load_run_config_or_network(const std::string& path, const std::vector<std::string>& overrides);

/// The device of the rank with this `local_rank`: ranks use their machine's GPUs in turn. With `cuda` but no
/// GPU it is a device that cannot be used.
Device device_of(const TrainOptions& options, int local_rank);

/// Sets what the configuration makes depend on K: the batch size. ConfigError if its table has none for K.
void resolve_ranks(RunConfig& run, int ranks);

/// Checks what depends on K: batch size, collective, transport. ConfigError with the key's file, line and
/// column.
void check_ranks(const RunConfig& run, int ranks, bool under_mpirun);

/// Where `section.key` was written, or the section or the root if the key was left to its default.
config::Origin origin_of(const RunConfig& run, std::string_view section, std::string_view key);

/// The network of the configuration. If its file leaves the number of frames open, it is data.truncate, or
/// else `frames`, or else 1. train.freeze is applied. ConfigError; an error that an override may have caused
/// names the option.
NetworkSpec network_of(const RunConfig& run, std::optional<std::int64_t> frames = {});

/// Runs `body`. If it throws a ConfigError that begins with a key ("data.mean: ..."), adds that key's file,
/// line and column.
void with_locations(const RunConfig& run, const std::function<void()>& body);
/// Runs `body`. If it refuses a value of the file, which --set options may be the reason of, the message
/// names these, too.
void naming_options(const RunConfig& run, const std::function<void()>& body);

/// The configuration as resolved: every key with its value, the network in place of its path. exchange.ranks
/// is written for transport threads only, and no key that the chosen kinds do not read.
std::string resolved_text(const RunConfig& run);

/// exchange.timeout and exchange.timeout_outside_step.
Limits limits_of(const RunConfig& run);

}  // namespace lpsgd
