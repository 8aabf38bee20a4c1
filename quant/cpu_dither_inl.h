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
  LPSGD_INLINE void seek(std::int64_t first) {
    const auto counter = static_cast<std::uint32_t>(first / 8);
    if (counter == next_) return;  // the next block is drawn already
    next_ = drawn_ = counter;
    left_ = 0;
  }

  /// The next 64 halves, until the next call.
  LPSGD_INLINE const std::uint16_t* block() {
    if (left_ == 0) {
      refill();
      left_ = kBatch;
    }
    next_ += kBlock / 8;
    return halves_ + kBlock * (kBatch - left_--);
  }

 private:
  static constexpr int kBatch = 4;                                  // blocks
  static constexpr int kSets = kBatch * kBlock / 8 / philox_lanes;  // vectors of counters
  static constexpr int kParallel = 4;                               // whose rounds overlap

  [[gnu::noinline]] void refill() {
    for (int set = 0; set < kSets; set += kParallel) {
      std::uint16_t* const out = halves_ + set * philox_lanes * 8;
      philox_draws<kParallel>(drawn_ + static_cast<std::uint32_t>(set * philox_lanes), tensor_, step_, coder_,
                              seed_, static_cast<std::uint32_t>(RandomUse::codec),
                              [&](int v, PhiloxLanes draws)
                                  LPSGD_INLINED { store(out + v * 2 * kLanes, draws); });
    }
    drawn_ += kSets * philox_lanes;
  }

  std::uint32_t tensor_, step_, coder_, seed_;
  std::uint32_t next_ = 0;   // counter of the next block
  std::uint32_t drawn_ = 0;  // counter after the last one drawn
  int left_ = 0;             // blocks drawn and not returned yet
  alignas(64) std::uint16_t halves_[kBatch * kBlock];
};

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
