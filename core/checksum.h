// Checksums by XXH3.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lpsgd {

/// XXH3-128 of `bytes`, as 32 hexadecimal digits.
std::string checksum(std::span<const std::byte> bytes);

/// XXH3-64 of `bytes`.
unsigned long long checksum64(std::span<const std::byte> bytes);

/// checksum() of all bytes of a regular file, which is read in blocks. Throws FileError.
std::string file_checksum(const std::string& path);

/// checksum() of bytes that come in pieces.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;
  void add(std::span<const std::byte> bytes);
  /// Of the bytes so far.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lpsgd
