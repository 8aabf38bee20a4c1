// A run's folder belongs to one job at a time.
#pragma once

#include <string>
#include <vector>

namespace lpsgd {

/// Holds a folder for this process. The lock is flock(2) on a file in the folder, so it ends with the
/// process, however that ends. On a file system without flock the file itself is the lock: it must then be
/// removed by hand after a crash, and the refusal says so.
class FolderClaim {
 public:
  /// The lock's file in the folder; it names the process and its machine.
  static constexpr const char* file_name = ".lock";

  /// Makes `folder` where it is missing, and the folders above it. ConfigError when another process holds it,
  /// FileError when it cannot be made or written to.
  explicit FolderClaim(std::string folder);

  /// Gives the folder up. Folders that this claim made are removed again if they are still empty.
  ~FolderClaim();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  const std::string& folder() const { return folder_; }

 private:
  void make_folders();
  bool lock();  // false: another process removed the folder or the file meanwhile
  [[noreturn]] void refuse(const std::string& hint) const;
  void remove_what_is_empty() noexcept;

  std::string folder_, lock_file_;
  std::vector<std::string> made_;  // the outermost first
  int file_ = -1;
};

}  // namespace lpsgd
