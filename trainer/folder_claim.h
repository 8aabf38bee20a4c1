// A run's folder belongs to one job at a time.
#pragma once

#include <string>
#include <vector>

namespace lpsgd {

/// Holds a folder for this process. The lock is flock(2) on a file in the folder, so it ends with the
/// process, however that ends. On a file system without flock the file itself is the lock. After a crash it
/// is then taken over if it is of this machine and its process is gone; otherwise it must be removed by hand,
/// as the error message says.
class FolderClaim {
 public:
  /// The lock's file in the folder; it names the process, its machine and when it started.
  static constexpr const char* file_name = ".lock";

  /// Makes `folder` and the folders above it if they are missing. ConfigError if another process holds it,
  /// FileError if it cannot be made or written to.
  explicit FolderClaim(std::string folder);

  /// Releases the folder. Folders that this claim made are removed if they are still empty.
  ~FolderClaim();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  const std::string& folder() const { return folder_; }

 private:
  void make_folders();
  bool lock();  // false: another process removed the folder or the file meanwhile, or a stale one was removed
  std::string holder() const;
  bool remove_stale(const std::string& holder) const;  // false: it is not known to be stale
  [[noreturn]] void refuse(const std::string& holder, const std::string& hint) const;
  void remove_empty_folders() noexcept;

  std::string folder_, lock_file_;
  std::vector<std::string> made_;  // the outermost first
  int file_ = -1;
};

}  // namespace lpsgd
