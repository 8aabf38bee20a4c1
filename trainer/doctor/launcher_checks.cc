// MPI: the library, its launcher, and two ranks that are really started.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "core/json.h"
#include "trainer/doctor/checks.h"
#include "trainer/doctor/child_process.h"
#include "trainer/environment.h"
#include "trainer/mpirun.h"

namespace lpsgd::doctor {

namespace {

namespace fs = std::filesystem;

constexpr double version_seconds = 5, ranks_seconds = 30;

/// The program that a shell would start; empty: there is none.
std::string in_path(const std::string& name) {
  const char* variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "/usr/bin:/bin";
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    const std::string folder = path.substr(at, end - at), file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code error;
    if (fs::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0) return file;
    at = end + 1;
  }
  return "";
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

bool is_refused_as_root() {
  return mpi_family(mpi_version()) == "Open MPI" && ::geteuid() == 0 &&
         !(is_set("OMPI_ALLOW_RUN_AS_ROOT") && is_set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"));
}

/// "MPICH 4.0.2"
std::string library() {
  std::string text = mpi_version();
  constexpr std::string_view word = " Version:";
  if (const std::size_t at = text.find(word); at != std::string::npos) text.erase(at, word.size());
  return text;
}

std::string use_own() {
  return fmt::format("start ranks with {} -n K lpsgd ..., the launcher of {}", mpirun(), library());
}

Check ranks_failed(const std::string& found, const std::string& advice) {
  return {"ranks.started", Status::error, found, advice};
}

std::string advice_of_failed_start(const std::string& command) {
  return fmt::format(
      "try it by hand: {}; if a rank cannot be reached, see that this machine's name resolves "
      "(getent hosts $(hostname)) and that nothing blocks its loopback device",
      command);
}

}  // namespace

std::string mpi_family(std::string_view text) {
  const auto has = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
  for (const char* word : {"Open MPI", "OpenRTE", "PRRTE"})
    if (has(word)) return "Open MPI";
  for (const char* word : {"HYDRA", "Hydra", "MPICH", "Intel(R) MPI", "MVAPICH"})
    if (has(word)) return "MPICH";
  return "";
}

Checks library_check() {
  Check check{"mpi.library", Status::ok, fmt::format("{}, started by {}", library(), mpirun())};
  check.values = {{"version", mpi_version()}, {"mpirun", mpirun()}};
  if (in_path(mpirun()).empty() && ::access(mpirun(), X_OK) != 0) {
    check.status = Status::error;
    check.found += ", which is missing";
    check.advice = fmt::format(
        "install the launcher of {} (scripts/install-packages), or build again with the MPI library that is "
        "installed",
        library());
  }
  return {check};
}

Checks launcher_check() {
  Check check{"mpi.launcher"};
  const std::string path = in_path("mpirun"), own = mpi_family(mpi_version());
  if (path.empty()) {
    check.status = Status::warning;
    check.found = "no mpirun in PATH";
    check.advice = use_own();
    return {check};
  }
  check.values["path"] = path;
  const ChildResult child = run_child({path, "--version"}, version_seconds);
  const std::string family = mpi_family(child.out + child.err);
  if (child.timed_out)
    check.found = fmt::format("{} --version did not end within {:.0f} s", path, version_seconds);
  else if (!child.start_error.empty())
    check.found = fmt::format("{} cannot be started: {}", path, child.start_error);
  else if (family.empty())
    check.found = fmt::format("{} is a launcher that lpsgd does not know", path);
  else
    check.found = fmt::format("{} is that of {}", path, family);
  if (child.timed_out || family.empty() || family != own) {
    check.status = Status::warning;
    check.advice = use_own();
    if (!family.empty() && family != own) check.found += fmt::format(", lpsgd is linked with {}", own);
  }
  return {check};
}

Checks root_check() {
  if (!is_refused_as_root()) return {};
  return {{"mpi.root", Status::warning, "Open MPI's mpirun does not start for root",
           "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, or work as another user"}};
}

Checks two_ranks_checks() {
  std::error_code error;
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  const std::vector<std::string> words{mpirun(), "-n", "2", self, "doctor", "--ranks-only", "--json"};
  const std::string command = fmt::format("{} -n 2 {} doctor --ranks-only", mpirun(), self);
  // Open MPI refuses more ranks than cores, and root, which root_check() reports.
  std::vector<std::string> variables{"OMPI_MCA_rmaps_base_oversubscribe=1",
                                     "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                                     "CUDA_VISIBLE_DEVICES="};  // MPI is checked, without waits for NCCL
  if (is_refused_as_root())
    variables.insert(variables.end(), {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  const ChildResult child = run_child(words, ranks_seconds, variables);
  if (!child.start_error.empty())
    return {ranks_failed(fmt::format("{} cannot be started: {}", mpirun(), child.start_error),
                         "install that launcher, or build again with the MPI library that is installed")};
  if (child.timed_out)
    return {ranks_failed(fmt::format("two ranks were not done within {:.0f} s", ranks_seconds),
                         advice_of_failed_start(command))};
  Checks found;
  try {
    const nlohmann::ordered_json said = parse_json(child.out, "two ranks");
    for (const nlohmann::ordered_json& one : said.at("checks")) {
      Check check = check_from_json(one);
      // The others are of a job's own ranks; these show what any ranks of this machine can do.
      if (check.name == "ranks.started" || check.name == "ranks.exchange" || check.name == "ranks.allreduce")
        found.push_back(std::move(check));
    }
  } catch (const std::exception&) {
    found.clear();
  }
  if (found.empty()) {
    const std::string said = last_line(child.err.empty() ? child.out : child.err);
    return {ranks_failed(fmt::format("two ranks ended with status {}: {}", child.status,
                                     said.empty() ? "without a word" : said),
                         advice_of_failed_start(command))};
  }
  if (found.front().values.value("ranks", 0) != 2)
    return {ranks_failed(
        fmt::format("{} -n 2 did not make two ranks", mpirun()),
        "that launcher is of another MPI library: build again, or install that of " + mpi_version())};
  return found;
}

}  // namespace lpsgd::doctor
