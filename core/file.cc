#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
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

int open_output(const std::string& path, Existing existing) {
  if (existing == Existing::truncate) return open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  return open_file(path, O_WRONLY | O_CREAT | O_EXCL);  // follows no link
}

/// A descriptor, closed at the end of its scope.
struct Closer {
  explicit Closer(int open) : descriptor(open) {}
  ~Closer() { ::close(descriptor); }
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;
  const int descriptor;
};

}  // namespace

OpenedFile open_regular_file(const std::string& path, std::uint64_t limit) {
  const int descriptor = open_file(path, O_RDONLY | O_NONBLOCK);
  try {
    struct stat info {};
    if (::fstat(descriptor, &info) != 0) fail(path, "cannot be read");
    if (S_ISDIR(info.st_mode)) {
      errno = EISDIR;
      fail(path, "cannot be read");
    }
    if (!S_ISREG(info.st_mode)) throw FileError(fmt::format("{}: cannot be read: not a regular file", path));
    const auto bytes = static_cast<std::uint64_t>(info.st_size);
    if (bytes > limit)
      throw FileError(fmt::format("{}: too large: {} bytes, expected {} or fewer", path, bytes, limit));
    return {descriptor, bytes};
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

std::string read_file(const std::string& path, std::uint64_t limit) {
  const OpenedFile opened = open_regular_file(path, limit);
  const Closer file(opened.descriptor);
  std::string out;
  out.reserve(opened.bytes);
  char block[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.descriptor, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read");
    if (got == 0) return out;
    // Files of the system, as in /proc, have no size, and others may grow while they are read.
    if (static_cast<std::uint64_t>(got) > limit - out.size())
      throw FileError(fmt::format("{}: too large: expected {} bytes or fewer", path, limit));
    out.append(block, static_cast<std::size_t>(got));
  }
}

OutputFile::OutputFile(const std::string& path, Existing existing)
    : path_(path), descriptor_(open_output(path, existing)) {}

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

void OutputFile::sync() {
  if (::fsync(descriptor_) != 0) fail(path_, "cannot be synced");
}

void OutputFile::close() {
  sync();
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

std::string file_behind(const std::string& path, const char* option) {
  namespace fs = std::filesystem;
  std::error_code error, ignored;
  const fs::path at = fs::is_symlink(path, ignored) ? fs::canonical(path, error) : fs::path(path);
  if (error) throw FileError(fmt::format("{} {}: is a link that leads nowhere", option, path));
  if (fs::exists(at, ignored) && !fs::is_regular_file(at, ignored))
    throw FileError(fmt::format("{} {}: is not a regular file", option, path));
  return at.string();
}

void replace_file(const std::string& path, const std::string& text) {
  replace_file(path, [&](const std::string& fresh) {
    OutputFile file(fresh);
    file.write(text);
    file.close();
  });
}

void replace_file(const std::string& path, const std::function<void(const std::string&)>& write,
                  const char* suffix) {
  const std::string fresh = path + suffix;
  if (::unlink(fresh.c_str()) != 0 && errno != ENOENT) fail(fresh, "cannot be replaced");
  try {
    write(fresh);
    if (std::rename(fresh.c_str(), path.c_str()) != 0) fail(path, "cannot be written");
    const std::size_t slash = path.rfind('/');
    sync_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  } catch (...) {
    std::remove(fresh.c_str());
    throw;
  }
}

void sync_folder(const std::string& path) {
  const Closer folder(open_file(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(folder.descriptor) == 0) return;
  // OpenAFS, 9p and CIFS before Linux 5.9, for example, sync no folder.
  if (errno != EINVAL && errno != EBADF && errno != ENOTSUP) fail(path, "cannot be synced");
}

}  // namespace lpsgd
