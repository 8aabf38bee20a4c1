// Checksums by XXH3.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lpsgd {

/// XXH3-128 of `bytes`, as 32 hexadecimal digits.
std::string checksum(std::span<const std::byte> bytes);

/// The same of a regular file, read in blocks. Throws FileError.
std::string file_checksum(const std::string& path);

/// XXH3-64 of `bytes`.
unsigned long long checksum64(std::span<const std::byte> bytes);

}  // namespace lpsgd
