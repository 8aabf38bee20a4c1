#include "core/replacement_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/paths.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

/// What the names of this host's temporary files begin with. Locks may hold on one host only.
std::string temporary_prefix(const std::string& path) {
  char host[65] = "";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{}.new-{}-", path, host);
}

/// A job locks its file as long as it writes it, so one that can be locked was left.
void remove_if_left(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return;
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  ::close(file);
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void remove_left_files(const std::string& path) {
  const std::string prefix = fs::path(temporary_prefix(path)).filename().string();
  std::error_code error;
  for (fs::directory_iterator entry(folder_of(path), error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    if (entry->path().filename().string().starts_with(prefix)) remove_if_left(entry->path().string());
}

}  // namespace

ReplacementFile::ReplacementFile(std::string path) : path_(std::move(path)) {
  if (path_.ends_with('/') || is_folder(path_))
    throw FileError(fmt::format("{}: is a folder; expected the name of a file to write", path_));
  remove_left_files(path_);
  while (!open()) {
  }
}

bool ReplacementFile::open() {
  temporary_ = fmt::format("{}{:08x}", temporary_prefix(path_), std::random_device()());
  file_.emplace(temporary_, Existing::refuse);
  struct stat info {};
  const bool is_locked = ::flock(file_->descriptor(), LOCK_EX | LOCK_NB) == 0;
  // Before this file was locked, another job may have taken it for one that was left.
  if (!is_locked && errno == EWOULDBLOCK) return false;
  return ::fstat(file_->descriptor(), &info) != 0 || info.st_nlink > 0;
}

ReplacementFile::~ReplacementFile() {
  if (file_) std::remove(temporary_.c_str());
}

void ReplacementFile::publish() {
  file_->sync();
  // The file is locked until it has its name.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw FileError(fmt::format("{}: cannot be written: {}", path_, std::generic_category().message(errno)));
  file_.reset();
  sync_folder(folder_of(path_));
}

}  // namespace lpsgd
