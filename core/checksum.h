// Checksums: XXH3 with 128 bits, as 32 hexadecimal digits.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lpsgd {

/// XXH3-128 of `bytes`.
std::string checksum(std::span<const std::byte> bytes);

/// XXH3-64 of `bytes`, continuing from `seed`.
unsigned long long checksum64(std::span<const std::byte> bytes, unsigned long long seed = 0);

}  // namespace lpsgd
