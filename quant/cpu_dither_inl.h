// The dither's 16-bit halves, many Philox counters at a time: one counter per 64-bit lane. The next 32x32-bit
// product reads the lane's low half and ignores the high half.
#pragma once

#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

constexpr int kCounters = kLanes / 2;  // per vector

LPSGD_INLINE Q low_product(Q a, std::uint32_t b) {
  const Q m = Q{} + std::uint64_t{b};
#if defined(__AVX512F__)
  return reinterpret_cast<Q>(_mm512_mul_epu32(reinterpret_cast<Native>(a), reinterpret_cast<Native>(m)));
#elif defined(__AVX2__)
  return reinterpret_cast<Q>(_mm256_mul_epu32(reinterpret_cast<Native>(a), reinterpret_cast<Native>(m)));
#else
  return reinterpret_cast<Q>(_mm_mul_epu32(reinterpret_cast<Native>(a), reinterpret_cast<Native>(m)));
#endif
}

/// The high halves of the lanes; what is above them is not used.
LPSGD_INLINE Q high_halves(Q x) {
#if defined(__AVX512F__)
  // A shuffle, because shifts and products share a port of some processors.
  return reinterpret_cast<Q>(_mm512_shuffle_epi32(reinterpret_cast<Native>(x), _MM_PERM_DDBB));
#else
  return x >> 32;
#endif
}

template <int... lane>
LPSGD_INLINE Q drawn_order(std::integer_sequence<int, lane...>) {
  return Q{(lane % 2 * kCounters / 2 + lane / 2)...};
}
/// Counter of each lane, such that interleaving the lanes' 128-bit results in pairs gives them in order.
LPSGD_INLINE Q drawn_order() {
  return drawn_order(std::make_integer_sequence<int, kCounters>());
}

/// odd 0: a0 b0 a2 b2 ...; odd 1: a1 b1 a3 b3 ...
template <int odd, int... lane>
LPSGD_INLINE Q interleave(Q a, Q b, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, (lane % 2 * (kCounters - 1) + lane + odd)...);
}

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
  static constexpr int kBatch = 4;                               // blocks
  static constexpr int kSets = kBatch * kBlock / 8 / kCounters;  // vectors of counters
  static constexpr int kParallel = 4;                            // whose rounds overlap

  [[gnu::noinline]] void refill() {
    for (int set = 0; set < kSets; set += kParallel) {
      Q c0[kParallel], c1[kParallel], c2[kParallel], c3[kParallel];
#pragma GCC unroll 4
      for (int s = 0; s < kParallel; ++s) {
        c0[s] = drawn_order() + std::uint64_t{drawn_ + static_cast<std::uint32_t>((set + s) * kCounters)};
        c1[s] = Q{} + std::uint64_t{tensor_};
        c2[s] = Q{} + std::uint64_t{step_};
        c3[s] = Q{} + std::uint64_t{coder_};
      }
      std::uint32_t k0 = seed_;
      auto k1 = static_cast<std::uint32_t>(RandomUse::codec);
      for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
        for (int s = 0; s < kParallel; ++s) {
          const Q p0 = low_product(c0[s], 0xD2511F53u);
          const Q p1 = low_product(c2[s], 0xCD9E8D57u);
          c0[s] = high_halves(p1) ^ c1[s] ^ std::uint64_t{k0};
          c2[s] = high_halves(p0) ^ c3[s] ^ std::uint64_t{k1};
          c1[s] = p1;
          c3[s] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
#pragma GCC unroll 4
      for (int s = 0; s < kParallel; ++s) {
        const Q low = (c0[s] & 0xffffffffu) | (c1[s] << 32);
        const Q high = (c2[s] & 0xffffffffu) | (c3[s] << 32);
        std::uint16_t* out = halves_ + (set + s) * kCounters * 8;
        store(out, interleave<0>(low, high, std::make_integer_sequence<int, kCounters>()));
        store(out + 2 * kLanes, interleave<1>(low, high, std::make_integer_sequence<int, kCounters>()));
      }
    }
    drawn_ += kSets * kCounters;
  }

  std::uint32_t tensor_, step_, coder_, seed_;
  std::uint32_t next_ = 0;   // counter of the next block
  std::uint32_t drawn_ = 0;  // counter after the last one drawn
  int left_ = 0;             // blocks drawn and not returned yet
  alignas(64) std::uint16_t halves_[kBatch * kBlock];
};

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
