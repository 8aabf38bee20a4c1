#include "core/checksum.h"

#include <fmt/core.h>
#include <unistd.h>
#define XXH_INLINE_ALL  // the Python package's liblpsgd.so shall not need libxxhash
#include <xxhash.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace lpsgd {

namespace {

std::string text_of(const XXH128_hash_t& h) {
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace

std::string checksum(std::span<const std::byte> bytes) {
  return text_of(XXH3_128bits(bytes.data(), bytes.size()));
}

unsigned long long checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct ChecksumStream::State {
  XXH3_state_t* state = XXH3_createState();
  ~State() { XXH3_freeState(state); }
};

ChecksumStream::ChecksumStream() : state_(std::make_unique<State>()) {
  require(state_->state != nullptr && XXH3_128bits_reset(state_->state) == XXH_OK, "a checksum's state");
}

ChecksumStream::~ChecksumStream() = default;

void ChecksumStream::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->state, bytes.data(), bytes.size());
}

std::string ChecksumStream::text() const {
  return text_of(XXH3_128bits_digest(state_->state));
}

std::string file_checksum(const std::string& path) {
  const int file = open_regular_file(path).descriptor;
  ChecksumStream sum;
  std::vector<std::byte> block(std::size_t{1} << 20);
  ssize_t got = 0;
  while ((got = ::read(file, block.data(), block.size())) > 0 || (got < 0 && errno == EINTR))
    if (got > 0) sum.add(std::span(block).first(static_cast<std::size_t>(got)));
  const int error = errno;
  ::close(file);
  if (got < 0)
    throw FileError(fmt::format("{}: cannot be read: {}", path, std::generic_category().message(error)));
  return sum.text();
}

}  // namespace lpsgd
