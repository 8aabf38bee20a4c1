// Files: where runs go, where a GPU's algorithms are kept, where data sets lie.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/paths.h"
#include "nn/plan_search.h"
#include "trainer/doctor/checks.h"
#include "trainer/doctor/system_files.h"

namespace lpsgd::doctor {

namespace {

namespace fs = std::filesystem;

/// Why no file can be written in this folder; empty: one was, and is gone.
std::string unwritable(const std::string& folder) {
  const std::string path = fmt::format("{}/.lpsgd-doctor-{}", folder, ::getpid());
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return std::strerror(errno);
  ::unlink(path.c_str());  // already here: nothing stays if the process is ended below
  const std::array<char, 4096> page{};
  int error = 0;
  const ssize_t written = ::write(file, page.data(), page.size());
  if (written != static_cast<ssize_t>(page.size())) error = written < 0 ? errno : ENOSPC;
  if (error == 0 && ::fsync(file) != 0) error = errno;
  if (::close(file) != 0 && error == 0) error = errno;
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

Checks runs_check() {
  std::error_code ignored;
  const std::string here = fs::current_path(ignored).string(), shown = here.empty() ? "." : here;
  const bool has_runs = path_exists("runs");
  const std::string folder = has_runs ? "runs" : ".", name = has_runs ? shown + "/runs" : shown;
  Check check{"files.runs"};
  check.values = {{"folder", name}};
  const std::string why = has_runs && !is_folder("runs") ? "is a file" : unwritable(folder);
  if (!why.empty()) {
    check.status = Status::error;
    check.found = fmt::format("{} cannot be written: {}", name, why);
    check.advice = "change to a folder that can be written; or give each run one by --out";
    return {check};
  }
  const std::optional<Space> space = space_of(folder);
  check.found = fmt::format("runs go to {}; {} free", has_runs ? name : name + "/runs",
                            space ? bytes_text(space->free) + " are" : "the system does not say what is");
  if (space) check.values["free_bytes"] = space->free;
  if (space && space->free < gib) {
    check.status = Status::warning;
    check.advice =
        "make room, or give --out on another disk: a checkpoint holds a network's weights and its "
        "optimizer's state";
  }
  return {check};
}

Checks cache_check() {
  const std::string folder = cache_folder();
  Check check{"files.cache"};
  const std::string advice =
      "set XDG_CACHE_HOME to a folder that can be written; otherwise each run on a GPU searches its "
      "algorithms anew";
  if (folder.empty()) {
    check.status = Status::warning;
    check.found = "neither XDG_CACHE_HOME nor HOME is an absolute path";
    check.advice = advice;
    return {check};
  }
  check.values = {{"folder", folder}};
  fs::path there = folder;  // or the nearest folder above, in which it would be made
  std::error_code error;
  while (!fs::exists(fs::status(there, error)) && there.has_relative_path()) there = there.parent_path();
  const std::string why = fs::is_directory(there, error) ? unwritable(there.string())
                                                         : fmt::format("{} is no folder", there.string());
  if (why.empty()) {
    check.found = fmt::format("{} {} be written", folder,
                              there == fs::path(folder) ? "can" : "does not exist, and can");
    return {check};
  }
  check.status = Status::warning;
  check.found = fmt::format("{} cannot be written: {}", folder, why);
  check.advice = advice;
  return {check};
}

Checks data_check() {
  const char* data = std::getenv("LPSGD_DATA");
  if (data == nullptr || *data == 0)
    return {{"files.data", Status::absent,
             "LPSGD_DATA is not set; only generated data sets need no files (configs/quickstart.yaml)"}};
  Check check{"files.data"};
  check.values = {{"folder", data}};
  std::error_code error;
  if (!fs::is_directory(data, error)) {
    check.status = Status::warning;
    check.found = fmt::format("LPSGD_DATA is {}, which is no folder{}", data,
                              error ? fmt::format(" ({})", error.message()) : "");
    check.advice = "let it name the folder of the data sets; scripts/get-data NAME puts them there";
    return {check};
  }
  std::vector<std::string> sets;  // as scripts/get-data and configs/ name their folders
  for (const char* name : {"cifar-10-batches-bin", "cifar-100-binary", "mnist", "fashion_mnist", "an4", "ptb",
                           "wikitext-2", "imagenet"})
    if (fs::is_directory(fs::path(data) / name, error)) sets.emplace_back(name);
  check.values["data_sets"] = sets;
  check.found = fmt::format("LPSGD_DATA is {}; of the folders of scripts/get-data it holds {}", data,
                            sets.empty() ? "none" : fmt::format("{}", fmt::join(sets, ", ")));
  return {check};
}

}  // namespace lpsgd::doctor
