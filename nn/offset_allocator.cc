#include "nn/offset_allocator.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace lpsgd {

namespace {

constexpr std::int64_t alignment = 64;
constexpr std::int64_t open_end = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::size_t OffsetAllocator::allocate(std::int64_t bytes) {
  const std::int64_t size = (std::max<std::int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  buffers_.push_back({size, {{now_++, open_end}}});
  return buffers_.size() - 1;
}

void OffsetAllocator::release(std::size_t buffer) {
  Lifetime& last = buffers_[buffer].lifetimes.back();
  require(last.second == open_end, "a buffer is released once");
  last.second = now_++;
}

void OffsetAllocator::use_again(std::size_t buffer) {
  require(buffers_[buffer].lifetimes.back().second != open_end, "a buffer that is used again was released");
  buffers_[buffer].lifetimes.emplace_back(now_++, open_end);
}

bool OffsetAllocator::Buffer::meets(const Buffer& other) const {
  return std::ranges::any_of(lifetimes, [&](const Lifetime& a) {
    return std::ranges::any_of(other.lifetimes,
                               [&](const Lifetime& b) { return a.first < b.second && b.first < a.second; });
  });
}

OffsetAllocator::Layout OffsetAllocator::place(const std::vector<std::size_t>& order) const {
  Layout out{std::vector<std::int64_t>(buffers_.size()), 0};
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t i : order) {
    std::int64_t offset = 0;
    for (const std::size_t p : placed) {
      if (out.offsets[p] >= offset + buffers_[i].bytes) break;  // it fits before p, and all others lie behind
      if (buffers_[i].meets(buffers_[p])) offset = std::max(offset, out.offsets[p] + buffers_[p].bytes);
    }
    out.offsets[i] = offset;
    out.bytes = std::max(out.bytes, offset + buffers_[i].bytes);
    const auto behind =
        std::ranges::upper_bound(placed, offset, {}, [&](std::size_t p) { return out.offsets[p]; });
    placed.insert(behind, i);
  }
  return out;
}

OffsetAllocator::Layout OffsetAllocator::layout() const {
  std::vector<std::size_t> order(buffers_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Layout by_time = place(order);
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return buffers_[i].bytes; });
  Layout by_size = place(order);
  return by_size.bytes < by_time.bytes ? by_size : by_time;
}

}  // namespace lpsgd
