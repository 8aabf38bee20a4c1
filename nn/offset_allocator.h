// Allocates memory ranges in an arena, for tensors whose lifetimes are known in advance.
#pragma once

#include <cstdint>
#include <vector>

namespace lpsgd {

/// First fit. Only offsets are computed; there is no memory behind them yet.
class OffsetAllocator {
 public:
  /// The offset of a free range, in bytes. It is a multiple of 64.
  std::int64_t allocate(std::int64_t bytes);
  /// Frees the range that allocate(bytes) returned.
  void release(std::int64_t offset, std::int64_t bytes);
  /// The size of an arena that holds every range.
  std::int64_t peak() const { return peak_; }

 private:
  struct FreeRange {
    std::int64_t offset, bytes;
  };
  std::vector<FreeRange> free_;  // below end_, by offset; no two are adjacent
  std::int64_t end_ = 0, peak_ = 0;
};

}  // namespace lpsgd
