// Reading and writing files. Errors name the path.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lpsgd {

/// The bytes of the file. Throws FileError if it cannot be read.
std::string read_file(const std::string& path);

/// A file that is written piece by piece and replaces any file at `path`. All functions throw FileError.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Syncs the file to disk and closes it. Without this call the content is not safe.
  void close();

 private:
  std::string path_;
  int descriptor_;
};

/// Writes and syncs `pieces`, one after the other, to `path`, replacing it. Throws FileError.
void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);
void write_file(const std::string& path, const std::string& text);

/// As write_file(), but writes `path`.new and renames it, so that a crash or a full disk leaves the old file.
void replace_file(const std::string& path, const std::string& text);

/// Syncs the entries of a folder to disk. Throws FileError.
void sync_folder(const std::string& path);

}  // namespace lpsgd
