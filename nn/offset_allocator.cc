#include "nn/offset_allocator.h"

#include <algorithm>

namespace lpsgd {

namespace {

constexpr std::int64_t alignment = 64;

std::int64_t rounded(std::int64_t bytes) {
  return (std::max<std::int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
}

}  // namespace

std::int64_t OffsetAllocator::allocate(std::int64_t bytes) {
  const std::int64_t need = rounded(bytes);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->bytes < need) continue;
    const std::int64_t offset = range->offset;
    range->offset += need;
    range->bytes -= need;
    if (range->bytes == 0) free_.erase(range);
    return offset;
  }
  std::int64_t offset = end_;
  if (!free_.empty() && free_.back().offset + free_.back().bytes == end_) {
    offset = free_.back().offset;  // extend the last free range
    free_.pop_back();
  }
  end_ = offset + need;
  peak_ = std::max(peak_, end_);
  return offset;
}

void OffsetAllocator::release(std::int64_t offset, std::int64_t bytes) {
  const std::int64_t size = rounded(bytes);
  auto next = std::find_if(free_.begin(), free_.end(), [&](const FreeRange& r) { return r.offset > offset; });
  next = free_.insert(next, {offset, size});
  const auto merge = [&](std::vector<FreeRange>::iterator a) {
    const auto b = a + 1;
    if (b == free_.end() || a->offset + a->bytes != b->offset) return;
    a->bytes += b->bytes;
    free_.erase(b);
  };
  merge(next);
  if (next != free_.begin()) merge(next - 1);
}

}  // namespace lpsgd
