#include "core/checksum.h"

#include <fmt/core.h>
#include <xxhash.h>

namespace lpsgd {

std::string checksum(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

unsigned long long checksum64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace lpsgd
