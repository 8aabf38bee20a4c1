// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). They are the same on host and device. A draw is a pure function of key and counter,
// so it does not depend on schedules, numbers of threads or ranks.
#pragma once

#include <array>
#include <cstdint>

#include "core/host_device.h"

namespace lpsgd {

/// What the numbers are used for: the second word of the key. The first word is the run's seed.
enum class RandomUse : std::uint32_t {
  codec = 1,         // counter (floor(e/8), tensor, step, 2*rank + round - 1): docs/numerics.md
  weights = 2,       // counter (element/4, tensor, 0, 0)
  shuffle = 3,       // counter (draw/4, epoch, 0, 0)
  augmentation = 4,  // counter (draw/4, sample, epoch, 0)
  dropout = 5,       // counter (element/4, position in the global batch, step, layer)
  dataset = 6,       // generated data sets: counter (draw/4, sample, split, 0)
  noise = 7,         // of gradients: counter (element/4, tensor, step, 0)
  accuracy = 8,  // operands that algorithms are checked with: counter (element/4, its high word, tensor, 0)
};

struct Philox4x32 {
  std::uint32_t x[4];
};

LPSGD_HD std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint64_t product;  // one instruction; the compiler takes a longer way for 64-bit factors
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return static_cast<std::uint64_t>(a) * b;
#endif
}

/// Ten rounds of Philox4x32 on counter (c0, c1, c2, c3) under key (k0, k1).
LPSGD_HD Philox4x32 philox4x32(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                               std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = wide_product(c0, 0xD2511F53u), p1 = wide_product(c2, 0xCD9E8D57u);
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = n2;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return Philox4x32{{c0, c1, c2, c3}};
}

/// A sequence of draws under the key (seed, use) and the counter (block, c1, c2, c3); a block has four draws.
class PhiloxSequence {
 public:
  PhiloxSequence(std::uint32_t seed, RandomUse use, std::uint32_t c1, std::uint32_t c2 = 0,
                 std::uint32_t c3 = 0)
      : seed_(seed), use_(static_cast<std::uint32_t>(use)), c1_(c1), c2_(c2), c3_(c3) {}

  std::uint32_t next() {
    if (used_ == 4) {
      block_ = philox4x32(count_++, c1_, c2_, c3_, seed_, use_);
      used_ = 0;
    }
    return block_.x[used_++];
  }
  /// Uniform in [0, 1), 24 bits.
  float uniform() { return static_cast<float>(next() >> 8) * 0x1p-24f; }
  /// Uniform in 0..n-1, for n > 0: exactly uniform, by Lemire's multiplication with rejection.
  std::uint32_t below(std::uint32_t n) {
    std::uint64_t product = static_cast<std::uint64_t>(next()) * n;
    if (static_cast<std::uint32_t>(product) < n) {
      const std::uint32_t threshold = (0u - n) % n;
      while (static_cast<std::uint32_t>(product) < threshold)
        product = static_cast<std::uint64_t>(next()) * n;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  std::uint32_t seed_, use_, c1_, c2_, c3_;
  std::uint32_t count_ = 0;
  int used_ = 4;
  Philox4x32 block_{};
};

}  // namespace lpsgd
