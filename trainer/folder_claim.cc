#include "trainer/folder_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "core/error.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

std::string error_text(int error) {
  return std::error_code(error, std::generic_category()).message();
}

std::string this_process() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("process {} on {}", ::getpid(), host);
}

/// Whether the open file is still the one at that path.
bool is_same_file(int file, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
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
  ::unlink(lock_file_.c_str());  // before releasing the lock: a waiting process then finds no file
  ::close(file_);                // NFS keeps a file that is open, under another name in the folder
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
  }
}

bool FolderClaim::lock() {
  if (file_ >= 0) ::close(file_);
  file_ = ::open(lock_file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  const bool is_new = file_ >= 0;
  if (!is_new && errno == EEXIST) file_ = ::open(lock_file_.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0) {
    if (errno == ENOENT) return false;
    throw FileError(fmt::format("{}: cannot be written: {}", lock_file_, error_text(errno)));
  }
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) refuse("wait for it to end, or give another folder");
    if (!is_new)
      refuse(fmt::format("this file system has no locks, so if that run is over, remove {}", lock_file_));
  }
  if (!is_same_file(file_, lock_file_)) return false;
  const std::string holder = this_process() + "\n";
  // The text only improves the error message of other jobs: a full disk is no reason to stop here.
  [[maybe_unused]] const bool is_written =
      ::ftruncate(file_, 0) == 0 && ::pwrite(file_, holder.data(), holder.size(), 0) > 0;
  return true;
}

void FolderClaim::refuse(const std::string& hint) const {
  std::string holder;
  // The other process writes its name after it has taken the lock.
  for (int attempt = 0; attempt < 200 && holder.empty(); ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    char text[300] = "";
    const ssize_t length = ::pread(file_, text, sizeof text - 1, 0);
    holder.assign(text, length > 0 ? static_cast<std::size_t>(length) : 0);
    holder = holder.substr(0, holder.find('\n'));
  }
  throw ConfigError(
      fmt::format("--out {}: is in use by {}; {}", folder_, holder.empty() ? "another run" : holder, hint));
}

void FolderClaim::remove_empty_folders() noexcept {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder)
    if (::rmdir(folder->c_str()) != 0) return;
}

}  // namespace lpsgd
