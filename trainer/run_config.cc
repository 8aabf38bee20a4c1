#include "trainer/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "comm/block_transport.h"
#include "comm/nccl_transport.h"
#include "core/config_shape.h"
#include "core/device.h"
#include "core/error.h"
#include "core/log.h"
#include "core/paths.h"
#include "core/printable.h"
#include "trainer/config_checks.h"
#include "trainer/config_reference.h"
#include "trainer/environment.h"

namespace lpsgd {

namespace {

using config::Value;
using config::Visitor;

/// A network declares its parameters: giving one that it does not have would change nothing.
void check_parameter(const Value& network, const std::string& name, const config::Origin& origin) {
  const Value* declared = network.find("parameters");
  if (declared && declared->find(name)) return;
  std::vector<std::string> known;
  if (declared)
    for (const Value::Entry& e : declared->entries) known.push_back(e.key);
  config::fail(
      origin, "network.parameters",
      fmt::format("the network has no parameter '{}'{}; it has: {}", name, config::did_you_mean(name, known),
                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
}

Value read_network(const Value& path, const std::string& config_path) {
  const std::filesystem::path given = config::to_string(path, "network");
  std::filesystem::path file =
      given.is_absolute() ? given : std::filesystem::path(config_path).parent_path() / given;
  const auto is_file = [](const std::filesystem::path& at) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(at, ignored);
  };
  // A path given on the command line may also mean the current folder.
  if (path.origin.line == 0 && !is_file(file) && is_file(given)) file = given;
  if (!is_file(file)) config::fail(path.origin, "network", fmt::format("no file {}", file.string()));
  Value tree = config::parse_file(file.string());
  if (!tree.is_map()) config::fail(tree.origin, "network", "expected a map that describes a network");
  return tree;
}

/// Replaces `network: path` and `network: {file: path, parameters: {...}}` by the tree of the file.
void resolve_network(Value& root, const std::string& config_path) {
  Value* network = root.find("network");
  if (!network) return;
  const Value given = *network;
  if (given.is_scalar()) *network = read_network(given, config_path);
  const Value* file = given.find("file");
  if (!file) return;
  *network = read_network(*file, config_path);
  for (const Value::Entry& e : given.entries) {
    if (e.key == "file") continue;
    if (e.key != "parameters" || !e.value.is_map())
      config::fail(e.origin, "network", "beside `file` only a map `parameters` is allowed");
    for (const Value::Entry& parameter : e.value.entries) {
      check_parameter(*network, parameter.key, parameter.origin);
      network->find("parameters")->set(parameter.key, parameter.value);
    }
  }
}

void check_parameter_override(const Value& root, const std::string& o) {
  constexpr std::string_view prefix = "network.parameters.";
  const std::string path = o.substr(0, o.find('='));
  const Value* network = root.find("network");
  if (path.starts_with(prefix) && network && network->is_map())
    check_parameter(*network, path.substr(prefix.size()), {"--set " + o, 0, 0});
}

/// Any data set serves where only shapes are needed.
void add_data(Value& root) {
  if (root.find("data")) return;
  Value data = Value::map();
  data.set("dataset", Value::plain("shapes"));
  root.set("data", std::move(data));
}

enum class Data { needed, not_needed };

Value load_tree(const std::string& path, const std::vector<std::string>& overrides, Data data) {
  Value root = config::parse_file(path);
  if (root.is_null()) root.kind = Value::Kind::map;
  if (!root.is_map()) config::fail(root.origin, "", "expected a map of sections: network, data, train, ...");
  const auto replaces_network = [](const std::string& o) { return o.starts_with("network="); };
  for (const std::string& o : overrides)
    if (replaces_network(o)) config::apply_override(root, o);
  resolve_network(root, path);
  if (data == Data::not_needed) add_data(root);
  for (const std::string& o : overrides)
    if (!replaces_network(o)) {
      check_parameter_override(root, o);
      config::apply_override(root, o);
    }
  return root;
}

/// Expands the environment variables of every quoted string, and refuses those of others. What they hold may
/// be a number or a word as well. With `if_set` strings with a variable that is not set stay as they are.
void expand(Value& value, const std::string& path, config::Environment environment) {
  const auto inner = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  const bool names = config::names_environment(value);
  if (value.is_scalar()) try {
      value.scalar = config::expand_environment(value, path);
      if (names) value.quoted = false;
    } catch (const ConfigError&) {
      if (!names || environment == config::Environment::expand) throw;
    }
  for (Value::Entry& e : value.entries) expand(e.value, inner(e.key), environment);
  for (std::size_t i = 0; i < value.items.size(); ++i)
    expand(value.items[i], fmt::format("{}[{}]", path, i), environment);
}

/// Whether it depends on a variable that is not set.
bool is_unknown(const Value& value) {
  return config::names_environment(value) ||
         std::ranges::any_of(value.entries, [](const Value::Entry& e) { return is_unknown(e.value); }) ||
         std::ranges::any_of(value.items, is_unknown);
}

/// A map or a list with a variable that is not set is left out, so that the key has its default. (Reader does
/// the same for numbers and words.) Codecs and frozen layers decide what is sent: there it is an error.
void prune_section(Value::Entry& section) {
  std::erase_if(section.value.entries, [&](Value::Entry& e) {
    const std::string path = section.key + "." + e.key;
    if (path == "exchange.codec" || path == "train.freeze")
      expand(e.value, path, config::Environment::expand);
    if (path != "exchange.rules") return !e.value.is_scalar() && is_unknown(e.value);
    for (std::size_t i = 0; i < e.value.items.size(); ++i)
      for (Value::Entry& inner : e.value.items[i].entries)
        if (inner.key == "codec")
          expand(inner.value, fmt::format("{}[{}].codec", path, i), config::Environment::expand);
    return false;
  });
}

/// OpenMP ends the process if the system starts no more threads, so a number that no machine profits from is
/// refused. `count` threads are asked for each of `ranks` ranks of this process.
void check_thread_count(const RunConfig& run, std::string_view section, std::string_view key,
                        std::int64_t count, std::int64_t ranks) {
  const std::int64_t cores = std::max<std::int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN));
  const std::int64_t most = std::max<std::int64_t>(64, 8 * cores) / ranks;
  if (count > std::max<std::int64_t>(1, most))
    config::fail(origin_of(run, section, key), fmt::format("{}.{}", section, key),
                 fmt::format("{} threads{} on a machine of {} core{}; allowed here: {} or fewer", count,
                             ranks > 1 ? fmt::format(" for each of {} ranks", ranks) : "", cores,
                             cores > 1 ? "s" : "", std::max<std::int64_t>(1, most)));
}

void check_threads(const RunConfig& run) {
  const std::int64_t ranks = run.exchange.transport == TransportKind::threads ? run.exchange.ranks : 1;
  check_thread_count(run, "train", "threads", run.train.threads, ranks);
  check_thread_count(run, "data", "workers", run.data.workers, ranks);
}

/// That of the file; of a run's config.yaml the run's, which environment.json beside it has.
std::string name_of_run(const std::filesystem::path& config) {
  std::string name = config.stem().string();
  const std::string environment = (config.parent_path() / "environment.json").string();
  if (config.filename() != "config.yaml" || !path_exists(environment)) return name;
  try {
    const nlohmann::ordered_json recorded = read_environment(environment);
    if (!recorded.is_object() || !recorded.contains("name") || !recorded["name"].is_string()) return name;
    const std::filesystem::path given = recorded["name"].get<std::string>();
    if (!given.empty() && given == given.filename() && given != "." && given != "..") name = given.string();
  } catch (const FileError& e) {
    log::warn("{}; the run is called {}", e.what(), name);
  }
  return name;
}

RunConfig from_tree(Value tree, const std::string& path, const std::vector<std::string>& overrides,
                    config::Environment environment) {
  RunConfig run;
  run.name = name_of_run(path);
  run.tree = std::move(tree);
  run.overrides = overrides;
  for (Value::Entry& section : run.tree.entries) {
    if (section.key == "network") continue;  // its $names are parameters
    expand(section.value, section.key, environment);
    if (environment == config::Environment::if_set) prune_section(section);
  }
  try {
    config::read(run.tree, "", run,
                 environment == config::Environment::expand ? config::Environment::keep : environment);
  } catch (const config::UnknownKeyError& e) {
    const std::vector<std::string> homes = homes_of_key(e.key());
    if (homes.empty() || homes.size() > 3) throw;
    throw ConfigError(
        fmt::format("{}; '{}' is a key of {}", e.what(), printable(e.key()), fmt::join(homes, ", ")));
  }
  with_locations(run, [&] { check_combinations(run); });
  if (environment == config::Environment::expand) check_threads(run);  // not for `show`, on another machine
  return run;
}

/// The error, with the --set options that may be its reason, unless it names one itself.
ConfigError with_options(const ConfigError& e, const std::vector<std::string>& options) {
  if (options.empty() || std::string_view(e.what()).find("--set ") != std::string_view::npos) return e;
  return ConfigError(fmt::format("{} (with --set {})", e.what(), fmt::join(options, ", --set ")));
}

RunConfig load(const std::string& path, const std::vector<std::string>& overrides,
               config::Environment environment, Data data) {
  try {
    return from_tree(load_tree(path, overrides, data), path, overrides, environment);
  } catch (const ConfigError& e) {
    // A value of the file may be refused because of what an option says.
    if (overrides.empty()) throw;
    try {
      from_tree(load_tree(path, {}, data), path, {}, environment);
    } catch (const Error&) {
      throw e;  // not because of the options
    }
    throw with_options(e, overrides);
  }
}

NetworkSpec read_network(const RunConfig& run, std::optional<std::int64_t> frames) {
  try {
    NetworkSpec spec(run.network);
    if (spec.is_sequence() && run.data.truncate > 0) return NetworkSpec(run.network, run.data.truncate);
    if (spec.has_open_frames() && frames) return NetworkSpec(run.network, frames);
    return spec;
  } catch (const ConfigError& e) {
    std::vector<std::string> options;
    std::ranges::copy_if(run.overrides, std::back_inserter(options),
                         [](const std::string& o) { return o.starts_with("network"); });
    throw with_options(e, options);
  }
}

}  // namespace

void fields(Visitor& v, RunConfig& run) {
  v.required();
  v.shape([] { return config::Shape::choice({config::Shape::text(), config::Shape::any_map()}); });
  v.custom(
      "network", "a path relative to this file, {file: path, parameters: {...}}, or the network itself",
      "the layers, which docs/networks.md describes",
      [&](const Value& value, const std::string& path) {
        if (!value.is_map())
          config::fail(value.origin, path, "expected a path or a map that describes a network");
        run.network = value;
      },
      [&] { return run.network; });
  v.section("data", "the data set and how its samples are prepared",
            [&](Visitor& s) { fields(s, run.data); });
  v.section("train", "how long to train, and on what", [&](Visitor& s) { fields(s, run.train); });
  v.section("optimizer", "how gradients change the weights", [&](Visitor& s) { fields(s, run.optimizer); });
  v.section("schedule", "the learning rate of each step", [&](Visitor& s) { fields(s, run.schedule); });
  v.section("exchange", "how ranks average their gradients", [&](Visitor& s) { fields(s, run.exchange); });
  v.section("sync", "when ranks exchange (docs/local-sgd.md)", [&](Visitor& s) { fields(s, run.sync); });
  v.section("checkpoint", "when to save, and how much to keep",
            [&](Visitor& s) { fields(s, run.checkpoint); });
  v.section("metrics", "more records in metrics.jsonl", [&](Visitor& s) { fields(s, run.metrics); });
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          config::Environment environment) {
  return load(path, overrides, environment, Data::needed);
}

RunConfig load_run_config_or_network(const std::string& path, const std::vector<std::string>& overrides) {
  Value root = config::parse_file(path);
  if (!root.find("layers") || root.find("network"))
    return load(path, overrides, config::Environment::if_set, Data::not_needed);
  Value outer = Value::map();
  outer.origin = root.origin;
  outer.set("network", std::move(root));
  add_data(outer);
  for (const std::string& o : overrides) {
    check_parameter_override(outer, o);
    config::apply_override(outer, o);
  }
  return from_tree(std::move(outer), path, overrides, config::Environment::if_set);
}

Device device_of(const TrainOptions& options, int local_rank) {
  if (options.device == DeviceChoice::cpu) return Device::cpu();
  const int count = cuda_devices().count;
  if (count == 0) return options.device == DeviceChoice::cuda ? Device::cuda(0) : Device::cpu();
  return Device::cuda(local_rank % count);
}

void resolve_ranks(RunConfig& run, int ranks) {
  std::map<std::int64_t, std::int64_t>& sizes = run.train.batch_sizes;
  if (sizes.empty()) return scale_rate(run.schedule, run.train.batch_size);
  const auto found = sizes.find(ranks);
  if (found == sizes.end()) {
    std::vector<std::int64_t> known;
    for (const auto& [k, size] : sizes) known.push_back(k);
    config::fail(origin_of(run, "train", "batch_size"), "train.batch_size",
                 fmt::format("has no batch size for {} rank{}; it has those for {}", ranks,
                             ranks == 1 ? "" : "s", fmt::join(known, ", ")));
  }
  run.train.batch_size = found->second;
  sizes.clear();
  scale_rate(run.schedule, run.train.batch_size);
}

void check_ranks(const RunConfig& run, int ranks, bool under_mpirun) {
  if (run.exchange.transport == TransportKind::threads && under_mpirun)
    config::fail(
        origin_of(run, "exchange", "transport"), "exchange.transport",
        "threads makes its ranks inside one process; start it without mpirun (exchange.ranks says how many), "
        "or use mpi");
  if (run.exchange.link.burst > 0 && run.exchange.link.bandwidth == 0)
    config::fail(origin_of(run, "exchange", "link"), "exchange.link.burst",
                 "has a meaning with bandwidth only");
  if (run.exchange.transport != TransportKind::threads && run.exchange.ranks != 1)
    config::fail(origin_of(run, "exchange", "ranks"), "exchange.ranks",
                 "is for transport threads; with mpi, mpirun -n says how many ranks there are");
  if (run.exchange.transport == TransportKind::nccl) {
    std::string why = nccl_missing();
    if (why.empty()) why = cuda_devices().reason;
    if (why.empty() && run.train.device == DeviceChoice::cpu)
      why = "gradients stay on the CPU (train.device: cpu)";
    if (!why.empty())
      config::fail(origin_of(run, "exchange", "transport"), "exchange.transport",
                   fmt::format("nccl moves bytes between GPUs, but {}; allowed here: mpi, threads", why));
    if (run.exchange.link.emulated())
      config::fail(origin_of(run, "exchange", "link"), "exchange.link",
                   "cannot be emulated with transport nccl; use mpi or threads");
  }
  if (run.train.device == DeviceChoice::cuda && cuda_devices().count == 0)
    config::fail(origin_of(run, "train", "device"), "train.device",
                 fmt::format("cuda cannot be used: {}; allowed here: cpu, auto", cuda_devices().reason));
  if (const auto why = unsupported(run.train.compute, device_of(run.train, 0)))
    config::fail(origin_of(run, "train", "compute"), "train.compute", *why);
  if (run.train.batch_size % ranks != 0)
    config::fail(origin_of(run, "train", "batch_size"), "train.batch_size",
                 fmt::format("{} samples cannot be divided evenly over {} ranks; allowed: multiples of {}",
                             run.train.batch_size, ranks, ranks));
  if (run.train.batch_size / ranks % run.train.micro_batches != 0)
    config::fail(
        origin_of(run, "train", "micro_batches"), "train.micro_batches",
        fmt::format("{} samples of each rank cannot be divided evenly into {} micro-batches; allowed: "
                    "divisors of {}",
                    run.train.batch_size / ranks, run.train.micro_batches, run.train.batch_size / ranks));
  with_locations(run, [&] {
    check_blocks(run.sync, ranks);
    check_block_size(run.exchange.ranks_per_block, ranks, "exchange.ranks_per_block");
  });
  if (run.exchange.collective == Collective::allreduce && run.sync.kind == SyncKind::hierarchical_local_sgd)
    config::fail(
        origin_of(run, "sync", "kind"), "sync.kind",
        "hierarchical_local_sgd averages within blocks of ranks, which exchange.collective: allreduce "
        "cannot; use reduce_broadcast");
  if (run.exchange.collective == Collective::simulated && run.sync.is_local())
    config::fail(
        origin_of(run, "sync", "kind"), "sync.kind",
        "local steps need an exchange that averages; with exchange.collective: simulated each rank only "
        "decodes its own");
  if (run.exchange.collective == Collective::allreduce) {
    const auto refuse = [&](std::string_view key) {
      config::fail(origin_of(run, "exchange", key), fmt::format("exchange.{}", key),
                   "collective allreduce sums float32 and takes only codec none; use reduce_broadcast");
    };
    if (!run.exchange.policy.codec.is_none()) refuse("codec");
    for (const PolicyRule& rule : run.exchange.policy.rules)
      if (!rule.codec.is_none()) refuse("rules");
  }
}

config::Origin origin_of(const RunConfig& run, std::string_view section, std::string_view key) {
  const Value* value = run.tree.find(section);
  if (!value) return run.tree.origin;
  while (!key.empty()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    const Value* inner = value->is_map() ? value->find(key.substr(0, dot)) : nullptr;
    if (!inner) break;
    value = inner;
    key.remove_prefix(std::min(dot + 1, key.size()));
  }
  return value->origin;
}

NetworkSpec network_of(const RunConfig& run, std::optional<std::int64_t> frames) {
  NetworkSpec spec = read_network(run, frames);
  naming_options(run, [&] {
    try {
      spec.freeze(run.train.freeze);
    } catch (const ConfigError& e) {
      config::fail(origin_of(run, "train", "freeze"), "train.freeze", e.what());
    }
  });
  return spec;
}

void with_locations(const RunConfig& run, const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& e) {
    const std::string message = e.what();
    const std::string key = message.substr(0, message.find(':'));
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos || message.substr(key.size(), 2) != ": " ||
        run.tree.find(key.substr(0, dot)) == nullptr)
      throw;
    const config::Origin origin = origin_of(run, key.substr(0, dot), key.substr(dot + 1));
    throw ConfigError(fmt::format("{}: {}", origin.text(), message));
  }
}

void naming_options(const RunConfig& run, const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& e) {
    throw with_options(e, run.overrides);
  }
}

std::string resolved_text(const RunConfig& run) {
  RunConfig recorded = run;
  if (run.recorded_evaluate) recorded.data.evaluate = *run.recorded_evaluate;
  Value tree = config::write(recorded);
  if (run.exchange.transport != TransportKind::threads)
    std::erase_if(tree.find("exchange")->entries, [](const Value::Entry& e) { return e.key == "ranks"; });
  for (const char* const section : {"optimizer", "schedule", "exchange", "sync"})
    std::erase_if(tree.find(section)->entries,
                  [&](const Value::Entry& e) { return !is_read(run, section, e.key); });
  return config::emit(tree);
}

Limits limits_of(const RunConfig& run) {
  Limits limits;
  limits.step.seconds = run.exchange.timeout;
  limits.outside_step.seconds = run.exchange.timeout_outside_step;
  return limits;
}

}  // namespace lpsgd
