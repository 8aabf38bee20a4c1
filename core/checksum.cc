#include "core/checksum.h"

#include <fmt/core.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace lpsgd {

namespace {

std::string text_of(XXH128_hash_t h) {
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace

std::string checksum(std::span<const std::byte> bytes) {
  return text_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string file_checksum(const std::string& path) {
  const int file = open_regular_file(path).descriptor;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<std::byte> block(1 << 20);
  ssize_t got = 0;
  while ((got = ::read(file, block.data(), block.size())) > 0 || (got < 0 && errno == EINTR))
    if (got > 0) XXH3_128bits_update(state.get(), block.data(), static_cast<std::size_t>(got));
  const int error = errno;
  ::close(file);
  if (got < 0)
    throw FileError(fmt::format("{}: cannot be read: {}", path, std::generic_category().message(error)));
  return text_of(XXH3_128bits_digest(state.get()));
}

unsigned long long checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lpsgd
