#include "trainer/folder_claim.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/log.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

std::string error_text(int error) {
  return std::error_code(error, std::generic_category()).message();
}

std::string host_name() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return host;
}

/// When a process of this machine started, in seconds since 1970; nullopt: it is not there.
std::optional<std::int64_t> start_of(int process) {
  std::ifstream in(fmt::format("/proc/{}/stat", process)), uptime("/proc/uptime");
  std::string line;
  double up = 0;
  if (!std::getline(in, line) || !(uptime >> up)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');  // a name may hold spaces
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) rest >> field;
  double ticks = 0;  // since the machine started
  if (!(rest >> ticks)) return std::nullopt;
  const double age = up - ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<std::int64_t>(static_cast<double>(std::time(nullptr)) - age);
}

/// "process 17 on node1, started 2026-01-31 23:59:59 UTC"
std::string this_process() {
  const std::int64_t start = start_of(::getpid()).value_or(std::time(nullptr));
  return fmt::format("process {} on {}, started {:%Y-%m-%d %H:%M:%S} UTC", ::getpid(), host_name(),
                     fmt::gmtime(static_cast<std::time_t>(start)));
}

struct NamedProcess {
  int number = 0;
  std::string host;
  std::int64_t start = 0;  // seconds since 1970
};

/// What this_process() says of a process.
std::optional<NamedProcess> parse_holder(const std::string& holder) {
  NamedProcess out;
  char host[256] = "";
  std::tm start{};
  if (std::sscanf(holder.c_str(), "process %d on %255[^,], started %d-%d-%d %d:%d:%d UTC", &out.number, host,
                  &start.tm_year, &start.tm_mon, &start.tm_mday, &start.tm_hour, &start.tm_min,
                  &start.tm_sec) != 8)
    return std::nullopt;
  start.tm_year -= 1900;
  start.tm_mon -= 1;
  out.host = host;
  out.start = static_cast<std::int64_t>(::timegm(&start));
  return out;
}

bool is_of_another_host(const std::string& holder) {
  const std::optional<NamedProcess> process = parse_holder(holder);
  return process && process->host != host_name();
}

/// Whether the text names a process of this machine that has ended. Its number may be another process's now,
/// which started at another time.
bool has_ended(const std::string& holder) {
  const std::optional<NamedProcess> process = parse_holder(holder);
  if (!process || process->host != host_name()) return false;
  const std::optional<std::int64_t> now = start_of(process->number);
  return !now || std::abs(*now - process->start) > 60;  // the clock may have been set
}

/// The first line of a lock file.
std::string text_of(int file) {
  char text[300] = "";
  const ssize_t length = ::pread(file, text, sizeof text - 1, 0);
  const std::string all(text, length > 0 ? static_cast<std::size_t>(length) : 0);
  return all.substr(0, all.find('\n'));
}

/// Whether the open file is still the one at that path.
bool is_same_file(int file, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(file, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace

FolderClaim::FolderClaim(std::string folder)
    : folder_(std::move(folder)), lock_file_(folder_ + "/" + file_name) {
  try {
    // A refused job may remove its folder between these two steps.
    for (int attempt = 0; attempt < 100; ++attempt) {
      make_folders();
      if (lock()) return;
    }
    throw FileError(fmt::format("{}: other jobs keep making and removing it", folder_));
  } catch (...) {
    if (file_ >= 0) ::close(file_);
    remove_empty_folders();
    throw;
  }
}

FolderClaim::~FolderClaim() {
  // Before releasing the lock: a waiting process then finds no file.
  if (is_same_file(file_, lock_file_)) ::unlink(lock_file_.c_str());
  ::close(file_);  // NFS keeps a file that is open, under another name in the folder
  remove_empty_folders();
}

void FolderClaim::make_folders() {
  fs::path folder;
  for (const fs::path& part : fs::path(folder_)) {
    folder /= part;
    std::error_code error;
    if (part.empty() || fs::is_directory(folder, error)) continue;
    if (::mkdir(folder.c_str(), 0777) == 0)
      made_.push_back(folder.string());
    else if (errno != EEXIST)
      throw FileError(fmt::format("{}: cannot be made: {}", folder_, error_text(errno)));
    else if (!fs::is_directory(folder, error))  // another process may have made it
      throw FileError(
          fmt::format("{}: cannot be made: {} {}", folder_, folder.string(),
                      fs::is_symlink(folder, error) ? "is a link that leads nowhere" : "is not a folder"));
  }
}

bool FolderClaim::lock() {
  if (file_ >= 0) ::close(file_);
  file_ = ::open(lock_file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);  // follows no link
  const bool is_new = file_ >= 0;
  if (!is_new && errno == EEXIST) file_ = ::open(lock_file_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file_ < 0) {
    if (errno == ENOENT) return false;
    if (errno == ELOOP) throw FileError(fmt::format("{}: is a link; remove it", lock_file_));
    throw FileError(fmt::format("{}: cannot be written: {}", lock_file_, error_text(errno)));
  }
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) refuse(holder(), "wait for it to end, or give another folder");
    if (!is_new) {
      const std::string other = holder();
      if (remove_stale(other)) return false;
      refuse(other,
             fmt::format("this file system has no locks, so if that run is over, remove {}", lock_file_));
    }
  }
  if (!is_same_file(file_, lock_file_)) return false;
  if (const std::string before = is_new ? "" : text_of(file_); is_of_another_host(before))
    log::warn(
        "{}: {} has not released it. If that run goes on, end this one: the locks of this file system may "
        "hold on one host only",
        folder_, before);
  const std::string mine = this_process() + "\n";
  // The text only improves the error message of other jobs: a full disk is no reason to stop here.
  [[maybe_unused]] const bool is_written =
      ::ftruncate(file_, 0) == 0 && ::pwrite(file_, mine.data(), mine.size(), 0) > 0;
  return true;
}

std::string FolderClaim::holder() const {
  std::string holder;
  // The other process writes its name after it has taken the lock.
  for (int attempt = 0; attempt < 200 && holder.empty(); ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    holder = text_of(file_);
  }
  return holder;
}

bool FolderClaim::remove_stale(const std::string& holder) const {
  if (!has_ended(holder)) return false;
  // Of several processes that come here one moves the file away; the others find another one, or none.
  const std::string moved = fmt::format("{}.{}.{}", lock_file_, host_name(), ::getpid());
  if (!is_same_file(file_, lock_file_) || ::rename(lock_file_.c_str(), moved.c_str()) != 0) return true;
  if (!is_same_file(file_, moved)) {  // between the two another process has made its own
    if (::link(moved.c_str(), lock_file_.c_str()) == 0 || errno == EEXIST) ::unlink(moved.c_str());
    return true;
  }
  ::unlink(moved.c_str());
  log::warn("{}: took over the lock of {}, which has ended", folder_, holder);
  return true;
}

void FolderClaim::refuse(const std::string& holder, const std::string& hint) const {
  throw ConfigError(
      fmt::format("--out {}: is in use by {}; {}", folder_, holder.empty() ? "another run" : holder, hint));
}

void FolderClaim::remove_empty_folders() noexcept {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder)
    if (::rmdir(folder->c_str()) != 0) return;
}

}  // namespace lpsgd
