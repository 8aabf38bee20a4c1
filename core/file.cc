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

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail(path, flags & O_CREAT ? "cannot be written" : "cannot be read");
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void sync_and_close() {
    if (::fsync(fd_) != 0) fail(path_, "cannot be synced");
    if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "cannot be written");
  }

 private:
  std::string path_;
  int fd_;
};

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  std::string out;
  char block[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read");
    if (got == 0) return out;
    out.append(block, static_cast<std::size_t>(got));
  }
}

void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      const ssize_t put = ::write(file.get(), piece.data(), piece.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail(path, "cannot be written");
      piece = piece.subspan(static_cast<std::size_t>(put));
    }
  }
  file.sync_and_close();
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
  Descriptor folder(path, O_RDONLY | O_DIRECTORY);
  folder.sync_and_close();
}

}  // namespace lpsgd
