// Reading and writing files. Errors name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace lpsgd {

constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();

/// A regular file that is open for reading, and its size.
struct OpenedFile {
  int descriptor;
  std::uint64_t bytes;
};

/// Opens a regular file of at most `limit` bytes; the caller closes it. Never waits, as opening a named pipe
/// would. Throws FileError, which for anything but a regular file says so.
OpenedFile open_regular_file(const std::string& path, std::uint64_t limit = no_limit);

/// The bytes of a regular file. Throws FileError if it cannot be read or has more than `limit` bytes.
std::string read_file(const std::string& path, std::uint64_t limit = no_limit);

/// What an OutputFile does with what is at its path.
enum class Existing : std::uint8_t {
  truncate,  // writes the file that is there, or that a link there names
  refuse,    // FileError, also if it is a link
};

/// A file that is written piece by piece. All functions throw FileError.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path, Existing existing = Existing::truncate);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Syncs the file to disk. Without this call or close() the content is not safe.
  void sync();
  /// Syncs the file and closes it.
  void close();
  int descriptor() const { return descriptor_; }

 private:
  std::string path_;
  int descriptor_;
};

/// Writes and syncs `pieces`, one after the other, to `path`, replacing it. Throws FileError.
void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);
void write_file(const std::string& path, const std::string& text);

/// The regular file that a path, the value of `option`, names or would name, behind a link. FileError if
/// there is something else.
std::string file_behind(const std::string& path, const char* option);

/// Calls write(`path` + `suffix`), which writes and syncs that file, and renames it to `path`, so that a
/// crash or a full disk leaves the old file. What is there under the longer name is removed.
void replace_file(const std::string& path, const std::function<void(const std::string&)>& write,
                  const char* suffix = ".new");
/// A suffix that no file of a user has.
inline constexpr const char* unlikely_suffix = ".lpsgd-new";

/// As write_file(), but writes `path`.new and renames it, so that a crash or a full disk leaves the old file.
/// A `path`.new that is there already is removed, and never followed if it is a link.
void replace_file(const std::string& path, const std::string& text);

/// Syncs the entries of a folder to disk, where the file system can: some network file systems cannot. Throws
/// FileError.
void sync_folder(const std::string& path);

}  // namespace lpsgd
