#include "data/input_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace lpsgd {

namespace {

[[noreturn]] void cannot_read(const std::string& path, int error) {
  throw FileError(fmt::format("{}: cannot be read: {}", path, std::generic_category().message(error)));
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  const OpenedFile opened = open_regular_file(path_);
  descriptor_ = opened.descriptor;
  size_ = opened.bytes;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(std::exchange(other.size_, 0)) {}

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path_, errno);
    if (got == 0)
      throw FileError(
          fmt::format("{}: truncated: {} bytes, expected {} or more", path_, offset, offset + out.size()));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void read_whole_file(const std::string& path, std::uint64_t limit, std::vector<std::uint8_t>& out) {
  const InputFile file(path);
  if (file.size() > limit)
    throw FileError(fmt::format("{}: too large: {} bytes, expected {} or fewer", path, file.size(), limit));
  out.resize(file.size());
  file.read(0, out);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const InputFile file(path);
  if (file.size() == 0) throw FileError(fmt::format("{}: empty", path));
  void* at = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (at == MAP_FAILED) cannot_read(path, errno);
  bytes_ = {static_cast<const std::uint8_t*>(at), file.size()};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

}  // namespace lpsgd
