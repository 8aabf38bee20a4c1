// A run's folder belongs to one job at a time.
#pragma once

#include <string>
#include <vector>

namespace lpsgd {

/// Holds a folder for this process. The lock is flock(2) on a file in the folder, so it ends with the
/// process, however that ends. On a file system without flock the file itself is the lock: it must then be
/// removed by hand after a crash, as the error message says.
class FolderClaim {
 public:
  /// The lock's file in the folder; it names the process and its machine.
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
  bool lock();  // false: another process removed the folder or the file meanwhile
  [[noreturn]] void refuse(const std::string& hint) const;
  void remove_empty_folders() noexcept;

  std::string folder_, lock_file_;
  std::vector<std::string> made_;  // the outermost first
  int file_ = -1;
};

}  // namespace lpsgd
