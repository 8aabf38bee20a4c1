// Files of data sets: read at positions from several threads, or mapped into memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lpsgd {

/// An open regular file. read() may be called from several threads. Errors are FileErrors that begin with the
/// path.
class InputFile {
 public:
  /// Throws FileError if there is no such file, if it cannot be opened, or if it is a folder.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  /// Fills `out` with the bytes from `offset` on. Throws FileError if the file ends before.
  void read(std::uint64_t offset, std::span<std::uint8_t> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// The file's content, in `out`, whose memory is kept from call to call. A FileError begins with the path;
/// also for files of more than `limit` bytes.
void read_whole_file(const std::string& path, std::uint64_t limit, std::vector<std::uint8_t>& out);

/// A file in memory as long as this object lives. The file must not become shorter meanwhile: the system ends
/// a process that reads mapped bytes that are gone.
class MappedFile {
 public:
  /// Throws FileError, as InputFile does; also for an empty file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace lpsgd
