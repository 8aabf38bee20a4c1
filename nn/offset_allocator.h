// Places buffers, whose lifetimes are known in advance, in one arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lpsgd {

/// Only offsets are computed; there is no memory behind them. The order of the calls is the order in time.
class OffsetAllocator {
 public:
  struct Layout {
    std::vector<std::int64_t> offsets;  // in bytes, multiples of 64; by the buffers' indices
    std::int64_t bytes = 0;             // of the arena
  };

  /// A new buffer, in use from now on. Returns its index.
  std::size_t allocate(std::int64_t bytes);
  /// Its values are no longer needed, and others may take its place until use_again().
  void release(std::size_t buffer);
  /// A released buffer is in use once more, at the same place.
  void use_again(std::size_t buffer);

  /// Buffers that are in use at the same time do not overlap. Each is placed in turn at the lowest offset
  /// that is free during its lifetimes: in the order in which they were allocated, or the largest first,
  /// whichever takes less.
  Layout layout() const;

 private:
  using Lifetime = std::pair<std::int64_t, std::int64_t>;  // from the first to before the second
  struct Buffer {
    std::int64_t bytes = 0;
    std::vector<Lifetime> lifetimes;
    bool meets(const Buffer& other) const;
  };
  Layout place(const std::vector<std::size_t>& order) const;

  std::vector<Buffer> buffers_;
  std::int64_t now_ = 0;
};

}  // namespace lpsgd
