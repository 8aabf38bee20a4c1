#include "nn/plan_search.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace lpsgd {

namespace {

constexpr double loading = 0.1;  // seconds that a first run may wait for its kernels to be loaded
constexpr double enough = 0.01;  // seconds of runs that are timed together
constexpr int max_rounds = 3, max_runs = 4;
// A second run that takes so many times the fastest candidate's time, and 20 us more, needs no others: runs
// of one candidate do not differ so much.
constexpr double far_behind = 1.3, jitter = 20e-6;
constexpr int few_candidates = 3;
constexpr double share = 25;  // of what is left for all searches, one takes the 25th part at most
constexpr std::uint64_t max_file = std::uint64_t{16} << 20;
constexpr std::string_view format = "lpsgd plans 2";

/// While it lives, others that take the same folder wait, up to a second. Without a lock, as on a file system
/// that has none, two that write at once may lose a choice, never the file.
class FolderTurn {
 public:
  explicit FolderTurn(const std::string& folder) : file_(::open(folder.c_str(), O_RDONLY | O_CLOEXEC)) {
    for (int tries = 0; file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0; ++tries) {
      if (errno != EWOULDBLOCK || tries == 1000) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~FolderTurn() {
    if (file_ >= 0) ::close(file_);
  }
  FolderTurn(const FolderTurn&) = delete;
  FolderTurn& operator=(const FolderTurn&) = delete;

 private:
  int file_;
};

unsigned long long sum_of(std::string_view text) {
  return checksum64(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

PlanSearch::PlanSearch(double budget_seconds, double latest_seconds, Clock clock)
    : clock_(std::move(clock)), budget_(budget_seconds), latest_(std::max(latest_seconds, budget_seconds)) {}

bool PlanSearch::over() {
  if (!fastest_) return false;
  const double taken = clock_() - *begin_;
  if (measured_ >= few_candidates) return taken >= budget_;
  if (taken >= latest_) cut_off_ = true;
  return cut_off_;
}

PlanSearch::Result PlanSearch::measure(const std::function<double(int)>& run,
                                       const std::function<bool()>& accept) {
  Result out;
  if (!begin_) begin_ = clock_();
  const auto drop = [&](double allowance) {
    out.dropped = fastest_ && out.seconds > 2 * *fastest_ + allowance;
    return out.dropped;
  };
  out.seconds = run(1);
  out.runs = 1;
  ++measured_;
  if (drop(loading)) return out;
  if (out.seconds <= std::max(budget_, loading)) {
    out.seconds = run(1);
    out.runs = 2;
    if (drop(0)) return out;
    if (fastest_ && out.seconds > far_behind * *fastest_ + jitter) return out;
    const int together =
        static_cast<int>(std::clamp(enough / std::max(out.seconds, 1e-9), 1.0, double{max_runs}));
    for (int r = 0; r < max_rounds && clock_() - *begin_ < budget_; ++r) {
      out.seconds = std::min(out.seconds, run(together));
      out.runs += together;
    }
  }
  out.fastest = !fastest_ || out.seconds < *fastest_;
  if (out.fastest && accept && !accept()) {
    out.fastest = false;
    out.refused = true;
    --measured_;  // it does not end the search
  }
  if (out.fastest) fastest_ = out.seconds;
  return out;
}

PlanBudget::PlanBudget(double total_seconds, PlanSearch::Clock clock)
    : clock_(std::move(clock)), total_(total_seconds) {}

void PlanBudget::begin() {
  if (!end_) end_ = clock_() + total_;
}

PlanSearch PlanBudget::search() const {
  const double left = end_ ? std::max(*end_ - clock_(), 0.0) : total_;
  return {left / share, left, clock_};
}

PlanCache::PlanCache(std::string folder, std::string device, double search_seconds)
    : folder_(std::move(folder)), device_(std::move(device)), search_seconds_(search_seconds) {
  if (folder_.empty()) return;
  path_ = fmt::format("{}/plans-{:016x}.txt", folder_, sum_of(device_));
  known_ = read();
}

// Format: a line that names the format, one that names the device, then a line "<checksum> <operation>:
// <seconds of the search> <choice>" for each choice. The checksum is of the rest of the line and of the
// device.
std::map<std::string, PlanCache::Choice> PlanCache::read() const {
  std::map<std::string, Choice> out;
  std::string text;
  try {
    text = read_file(path_, max_file);
  } catch (const Error&) {
    return out;
  }
  std::string_view rest = text;
  const auto next = [&] {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return line;
  };
  if (next() != format || next() != device_) return out;
  while (!rest.empty()) {
    const std::string_view line = next();
    const std::size_t colon = line.find(": ");
    if (line.size() < 17 || colon == std::string_view::npos || colon < 17) continue;
    const std::string_view body = line.substr(17);
    if (fmt::format("{:016x} ", sum_of(device_ + std::string(body))) != line.substr(0, 17)) continue;
    Choice choice;
    const char* const end = line.data() + line.size();
    const auto [after, error] = std::from_chars(line.data() + colon + 2, end, choice.seconds);
    if (error != std::errc() || !std::isfinite(choice.seconds) || after == end || *after != ' ') continue;
    choice.text.assign(after + 1, end);
    out.insert_or_assign(std::string(line.substr(17, colon - 17)), std::move(choice));
  }
  return out;
}

std::optional<std::string> PlanCache::find(const std::string& operation) const {
  const auto at = known_.find(operation);
  if (at == known_.end() || at->second.seconds < search_seconds_) return std::nullopt;
  return at->second.text;
}

void PlanCache::add(const std::string& operation, const std::string& choice) {
  known_[operation] = added_[operation] = {search_seconds_, choice};
}

void PlanCache::save() {
  if (path_.empty() || added_.empty()) return;
  // Threads, processes and machines that share the folder write beside each other.
  static std::atomic<int> number = 0;
  const std::string beside =
      fmt::format("{}.{}-{}-{:08x}.new", path_, getpid(), number++, std::random_device()());
  try {
    std::filesystem::create_directories(folder_);
    const FolderTurn turn(folder_);
    for (const auto& [operation, choice] : read()) {
      Choice& kept = added_.try_emplace(operation, choice).first->second;
      if (choice.seconds > kept.seconds) kept = choice;
    }
    std::string text = fmt::format("{}\n{}\n", format, device_);
    for (const auto& [operation, choice] : added_) {
      const std::string body = fmt::format("{}: {} {}", operation, choice.seconds, choice.text);
      text += fmt::format("{:016x} {}\n", sum_of(device_ + body), body);
    }
    write_file(beside, text);
    std::filesystem::rename(beside, path_);
    added_.clear();
  } catch (const std::exception& e) {
    log::debug("the choice of algorithms is not kept: {}", e.what());
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
  }
}

std::string cache_folder() {
  const auto absolute = [](const char* name) {
    const char* path = std::getenv(name);
    return path != nullptr && path[0] == '/' ? std::string(path) : std::string();
  };
  if (const std::string folder = absolute("XDG_CACHE_HOME"); !folder.empty()) return folder + "/lpsgd";
  const std::string home = absolute("HOME");
  return home.empty() ? home : home + "/.cache/lpsgd";
}

std::string key_text(const std::vector<std::int64_t>& key) {
  return fmt::format("{}", fmt::join(key, " "));
}

}  // namespace lpsgd
