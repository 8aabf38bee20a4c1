// The dither's 16-bit halves.
#pragma once

#include "core/philox_lanes.h"
#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// Returns the halves of consecutive elements, a block of 64 at a time.
class DitherStream {
 public:
  LPSGD_INLINE DitherStream(const CodingContext& context, std::uint32_t tensor)
      : tensor_(tensor),
        step_(context.step),
        coder_(2 * context.rank + context.round - 1),
        seed_(context.seed) {}

  /// The next block is that of element `first`, a multiple of 32.
  LPSGD_INLINE void seek(std::int64_t first) { next_ = static_cast<std::uint64_t>(first) / 8; }

  /// The next 64 halves, until the next call.
  LPSGD_INLINE const std::uint16_t* block() {
    if (next_ - drawn_ > kCounters - kBlock / 8) {  // not within the draws
      drawn_ = next_;
      refill();
    }
    const std::uint16_t* const halves = halves_ + (next_ - drawn_) * 8;
    next_ += kBlock / 8;
    return halves;
  }

 private:
  static constexpr std::uint64_t kCounters = 32;  // whose draws are kept: 256 halves
  static constexpr int kSets = static_cast<int>(kCounters) / philox_lanes;  // vectors of counters
  static constexpr int kParallel = 4;                                       // whose rounds overlap

  [[gnu::noinline]] void refill() {
    const auto first = static_cast<std::uint32_t>(drawn_);
    for (int set = 0; set < kSets; set += kParallel) {
      std::uint16_t* const out = halves_ + set * philox_lanes * 8;
      philox_draws<kParallel>(first + static_cast<std::uint32_t>(set * philox_lanes), tensor_, step_, coder_,
                              seed_, static_cast<std::uint32_t>(RandomUse::codec),
                              [&](int v, PhiloxLanes draws)
                                  LPSGD_INLINED { store(out + v * 2 * kLanes, draws); });
    }
  }

  std::uint32_t tensor_, step_, coder_, seed_;
  std::uint64_t next_ = 0;                       // counter of the next block
  std::uint64_t drawn_ = ~std::uint64_t{0} / 2;  // counter of the first draw; at first it is of no element
  alignas(64) std::uint16_t halves_[kCounters * 8];
};

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
