// The bytes of a shard, version 1; docs/data.md describes them. All numbers are little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace lpsgd::shard {

static_assert(std::endian::native == std::endian::little, "shards are read as they lie in memory");

constexpr std::uint32_t version = 1;
constexpr std::uint64_t alignment = 64;  // of every sample and of the index
using Magic = std::array<char, 8>;
constexpr Magic begin_magic{'L', 'P', 'S', 'G', 'D', 'S', 'H', 'D'};
constexpr Magic end_magic{'L', 'P', 'S', 'G', 'D', 'E', 'N', 'D'};

/// At byte 0.
struct Header {
  Magic magic = begin_magic;
  std::uint32_t version = shard::version;
  std::array<std::uint32_t, 13> zero{};
};
static_assert(sizeof(Header) == 64);

/// One sample, in the index.
struct Entry {
  std::uint64_t offset = 0, bytes = 0;  // of the sample
  std::uint64_t checksum = 0;           // XXH3-64 of the sample's bytes
  std::uint64_t name_end = 0;           // its name ends here in the names, and the next one begins
  std::int32_t label = 0;
  std::uint32_t height = 0, width = 0, channels = 0;  // of pixels (H, W, C); all 0: a file's content
};
static_assert(sizeof(Entry) == 48);

/// At the end of the file, behind the names, which are behind the index.
struct Footer {
  std::uint64_t index = 0;  // where the index begins
  std::uint64_t samples = 0, names_bytes = 0;
  std::uint32_t classes = 0, split = 0;  // 0: train, 1: test
  std::array<char, 64> dataset{};        // its name, filled up with zeros
  std::array<std::uint64_t, 2> zero{};
  std::uint64_t checksum = 0;  // XXH3-64 of all bytes from the index up to this number
  Magic magic = end_magic;
};
static_assert(sizeof(Footer) == 128);

template <class T>
T load(const std::uint8_t* from) {
  T out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

}  // namespace lpsgd::shard
