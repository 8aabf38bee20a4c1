// A large file that takes its place when it is whole.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "core/file.h"

namespace lpsgd {

/// A file that is written beside `path`, as `path`.new-HOST-NUMBER, and renamed to `path`. Several jobs may
/// write one path at once: each has a file of its own, and the last to publish it stays. All functions throw
/// FileError.
class ReplacementFile {
 public:
  /// Removes what jobs of this host that were killed have left of `path`, where the file system has locks.
  explicit ReplacementFile(std::string path);
  /// Removes the file, unless it was published.
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(std::span<const std::byte> bytes) { file_->write(bytes); }
  /// Syncs the file and puts it in place of what is at `path`.
  void publish();

 private:
  bool open();  // false: another job took it for one that was left

  std::string path_, temporary_;
  std::optional<OutputFile> file_;
};

}  // namespace lpsgd
