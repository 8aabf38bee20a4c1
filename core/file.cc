#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace lpsgd {

namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw FileError(fmt::format("{}: {}: {}", path, what, std::generic_category().message(errno)));
}

int open_file(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(path, flags & O_CREAT ? "cannot be written" : "cannot be read");
  return descriptor;
}

/// An open file or folder, closed at the end of its scope.
struct OpenFile {
  explicit OpenFile(const std::string& path, int flags) : descriptor(open_file(path, flags)) {}
  ~OpenFile() { ::close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const int descriptor;
};

}  // namespace

std::string read_file(const std::string& path) {
  const OpenFile file(path, O_RDONLY);
  std::string out;
  char block[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.descriptor, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read");
    if (got == 0) return out;
    out.append(block, static_cast<std::size_t>(got));
  }
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), descriptor_(open_file(path, O_WRONLY | O_CREAT | O_TRUNC)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::close() {
  if (::fsync(descriptor_) != 0) fail(path_, "cannot be synced");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, "cannot be written");
}

void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
  OutputFile file(path);
  for (const std::span<const std::byte> piece : pieces) file.write(piece);
  file.close();
}

void write_file(const std::string& path, const std::string& text) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  write_file(path, std::span(&piece, 1));
}

void replace_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  try {
    write_file(fresh, text);
    if (std::rename(fresh.c_str(), path.c_str()) != 0) fail(path, "cannot be written");
  } catch (...) {
    std::remove(fresh.c_str());
    throw;
  }
}

void sync_folder(const std::string& path) {
  const OpenFile folder(path, O_RDONLY | O_DIRECTORY);
  if (::fsync(folder.descriptor) != 0) fail(path, "cannot be synced");
}

}  // namespace lpsgd
