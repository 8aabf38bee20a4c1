#include "trainer/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "comm/agree.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/paths.h"
#include "core/printable.h"
#include "trainer/environment.h"
#include "trainer/epoch_records.h"
#include "trainer/json_text.h"

namespace lpsgd {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::vector<int> usable_core_numbers() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cores.push_back(i);
  return cores;
}

int usable_cores() {
  return std::max(1, static_cast<int>(usable_core_numbers().size()));
}

int threads_of_rank(const TrainOptions& options, int local_ranks) {
  return options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, usable_cores() / local_ranks);
}

namespace {

bool holds_a_run(const std::string& folder) {
  return path_exists(folder + "/environment.json") || path_exists(folder + "/checkpoints") ||
         path_exists(folder + "/metrics.jsonl");
}

/// runs/<name>-<time>, with a number if another job made that folder in the same second.
std::unique_ptr<FolderClaim> claim_default_folder(const RunConfig& run) {
  const std::string stem =
      fmt::format("runs/{}-{:%Y%m%d-%H%M%S}", run.name, fmt::localtime(std::time(nullptr)));
  for (int i = 1;; ++i) {
    const std::string folder = i == 1 ? stem : fmt::format("{}-{}", stem, i);
    if (path_exists(folder)) continue;
    try {
      auto claim = std::make_unique<FolderClaim>(folder);
      if (!holds_a_run(folder)) return claim;
    } catch (const ConfigError&) {  // another job was quicker
    }
  }
}

std::unique_ptr<FolderClaim> claim_folder(const RunConfig& run, const std::string& out, bool resume) {
  if (out.empty()) return claim_default_folder(run);
  auto claim = std::make_unique<FolderClaim>(out);
  if (!holds_a_run(out) && path_exists(out + "/config.yaml"))
    throw ConfigError(fmt::format(
        "--out {}: has a config.yaml that is of no run and would be overwritten; give another folder", out));
  if (!resume && holds_a_run(out))
    throw ConfigError(
        fmt::format("--out {}: holds a run already; give --resume to go on with it, or another folder", out));
  return claim;
}

}  // namespace

RunFolder::RunFolder(Transport& transport, const RunConfig& run, const std::string& out, bool resume) {
  std::string refusal;
  collective_try(transport, [&] {
    if (transport.rank() != 0) return;
    try {
      claim_ = claim_folder(run, out, resume);
      path_ = claim_->folder();
    } catch (const ConfigError& e) {
      refusal = e.what();
    }
  });
  const std::vector<std::string> refusals = transport.all_gather_text(refusal);
  const std::vector<std::string> paths = transport.all_gather_text(path_);
  if (!refusals[0].empty()) throw SharedError(refusals[0], 2);
  path_ = paths[0];
}

std::vector<std::string> recorded_classes(const std::string& folder) {
  const std::string path = folder + "/environment.json";
  if (!path_exists(path)) return {};
  const ordered_json environment = read_environment(path);
  if (!environment.is_object() || !environment.contains("classes")) return {};
  try {
    return environment["classes"].get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw FileError(fmt::format("{}: classes: expected a list of names", path));
  }
}

void warn_of_other_classes(const std::string& folder, const std::vector<std::string>& classes) {
  try {
    const std::vector<std::string> recorded = recorded_classes(folder);
    // The record has U+FFFD in place of bytes that are not UTF-8.
    const auto written = ordered_json::parse(json_text(classes)).get<std::vector<std::string>>();
    const auto [trained, here] = std::ranges::mismatch(recorded, written);
    if (trained == recorded.end() || here == written.end()) return;  // one has no names, or they are the same
    log::warn(
        "{}: class {} is '{}' in the run but '{}' in this data: only the numbers of classes are compared",
        folder, trained - recorded.begin(), printable(*trained), printable(*here));
  } catch (const FileError& e) {
    log::warn("{}; whether the run's classes are those of this data is not known", e.what());
  }
}

void describe_run(Transport& transport, const std::string& folder, const RunConfig& run,
                  const std::vector<std::string>& classes, Device device,
                  const std::vector<std::string>& algorithms, const std::vector<std::string>& command_line) {
  const std::string environment =
      environment_json(transport, run.name, device, classes, algorithms, command_line);
  collective_try(transport, [&] {
    if (transport.rank() != 0) return;
    warn_of_other_classes(folder, classes);
    if (run.train.deterministic && path_exists(folder + "/environment.json")) {
      const std::string path = folder + "/environment.json";
      try {
        const ordered_json before = read_environment(path);
        if (before.is_object() &&
            before.value("algorithms", ordered_json::array()) != ordered_json(algorithms))
          log::warn(
              "{}: the libraries run other algorithms than before (see environment.json): this run will "
              "not go on bit for bit as if it had not stopped",
              folder);
      } catch (const FileError& e) {
        log::warn("{}; whether the libraries run the same algorithms as before is not known", e.what());
      }
    }
    replace_file(folder + "/environment.json", environment);  // holds_a_run() looks for it
    replace_file(folder + "/config.yaml", resolved_text(run));
  });
}

std::vector<std::string> metrics_lines(const std::string& folder) {
  std::vector<std::string> lines;
  for (EpochLine& line : read_epoch_lines(folder + "/metrics.jsonl")) lines.push_back(std::move(line.text));
  return lines;
}

void remove_summary(const std::string& folder) {
  const std::string path = folder + "/summary.json";
  std::error_code error;
  fs::remove(path, error);
  if (error) throw FileError(fmt::format("{}: cannot be removed: {}", path, error.message()));
}

void write_summary(const std::string& folder, const RunConfig& run, int ranks,
                   const std::vector<std::string>& records, const std::optional<EpochRecord>& rest,
                   const std::vector<std::string>& branches) {
  ordered_json s;
  s["name"] = run.name;
  s["finished"] = !rest.has_value();
  s["ranks"] = ranks;
  s["codec"] = to_text(run.exchange.policy.codec);
  if (run.exchange.collective == Collective::simulated) s["simulated"] = true;
  nlohmann::json last, best;
  double seconds = 0, communication = 0, computation = 0, samples = 0;
  std::uint64_t sent = 0, fp32 = 0;
  std::int64_t line = 0;
  const std::string path = folder + "/metrics.jsonl";
  for (const std::string& record : records) {
    last = parse_epoch_record(record, path, ++line);
    check_epoch_record(last, path, line);
    if (best.is_null() || (last["val_top1"].is_number() && last["val_top1"] > best["val_top1"])) best = last;
    seconds += last["seconds"]["total"].get<double>();
    communication += last["communication_s"].get<double>();
    computation += last["computation_s"].get<double>();
    samples += last["samples"].get<double>();
    sent += static_cast<std::uint64_t>(whole_number(last["bytes_sent"], path));
    fp32 += static_cast<std::uint64_t>(whole_number(last["bytes_fp32"], path));
  }
  if (rest) {
    seconds += rest->seconds.mean.total;
    communication += rest->seconds.mean.communication();
    computation += rest->seconds.mean.computation();
    samples += static_cast<double>(rest->samples());
    sent += rest->bytes_sent;
    fp32 += rest->bytes_fp32;
  }
  s["epochs"] = records.size();
  s["step"] = rest ? nlohmann::json(rest->step) : last.is_null() ? nlohmann::json(0) : last["step"];
  s["val_top1"] = last.is_null() ? nlohmann::json() : last["val_top1"];
  s["val_top5"] = last.is_null() ? nlohmann::json() : last["val_top5"];
  s["val_loss"] = last.is_null() ? nlohmann::json() : last["val_loss"];
  if (last.contains("val_perplexity")) s["val_perplexity"] = last["val_perplexity"];
  s["best_val_top1"] = best.is_null() ? nlohmann::json() : best["val_top1"];
  s["best_epoch"] = best.is_null() ? nlohmann::json() : best["epoch"];
  s["seconds"] = seconds;
  s["communication_s"] = communication;
  s["computation_s"] = computation;
  s["samples_per_s"] = communication + computation > 0 ? samples / (communication + computation) : 0.0;
  s["bytes_sent"] = sent;
  s["bytes_fp32"] = fp32;
  if (!branches.empty()) s["branches"] = branches;
  replace_file(folder + "/summary.json", json_text(s, 2) + "\n");
}

}  // namespace lpsgd
