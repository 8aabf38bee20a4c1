// Philox4x32-10 (core/philox.h) of many counters at a time: one counter per 64-bit lane. Only a lane's low
// half counts. The next 32x32-bit product reads it and ignores the high half. Included once per instruction
// set, with that set's flags.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstdint>
#include <utility>

namespace lpsgd {
namespace {

#if defined(__AVX512F__)
inline constexpr int philox_lanes = 8;
#elif defined(__AVX2__)
inline constexpr int philox_lanes = 4;
#else
inline constexpr int philox_lanes = 2;
#endif
typedef std::uint64_t PhiloxLanes __attribute__((vector_size(8 * philox_lanes)));

[[gnu::always_inline]] inline PhiloxLanes low_product(PhiloxLanes a, std::uint32_t b) {
  const PhiloxLanes m = PhiloxLanes{} + std::uint64_t{b};
#if defined(__AVX512F__)
  return reinterpret_cast<PhiloxLanes>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(m)));
#elif defined(__AVX2__)
  return reinterpret_cast<PhiloxLanes>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(m)));
#elif defined(__SSE2__)
  return reinterpret_cast<PhiloxLanes>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(m)));
#else
  return (a & 0xffffffffu) * m;
#endif
}

/// The high halves of the lanes; what is above them is not used.
[[gnu::always_inline]] inline PhiloxLanes high_halves(PhiloxLanes x) {
#if defined(__AVX512F__)
  // A shuffle, because shifts and products share a port of some processors.
  return reinterpret_cast<PhiloxLanes>(
      _mm512_maskz_shuffle_epi32(0xffff, reinterpret_cast<__m512i>(x), _MM_PERM_DDBB));
#else
  return x >> 32;
#endif
}

template <int... lane>
[[gnu::always_inline]] inline PhiloxLanes philox_order(std::integer_sequence<int, lane...>) {
  return PhiloxLanes{(lane % 2 * philox_lanes / 2 + lane / 2)...};
}
/// odd 0: a0 b0 a2 b2 ...; odd 1: a1 b1 a3 b3 ...
template <int odd, int... lane>
[[gnu::always_inline]] inline PhiloxLanes interleave(PhiloxLanes a, PhiloxLanes b,
                                                     std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, (lane % 2 * (philox_lanes - 1) + lane + odd)...);
}

/// The draws of `sets` * philox_lanes counters (c0, c1, c2, c3), (c0 + 1, c1, c2, c3), ... under key (k0,
/// k1), four each, in order: calls put(vector number, vector), 2 * sets vectors. The rounds of the sets
/// overlap.
template <int sets, class Put>
[[gnu::always_inline]] inline void philox_draws(std::uint32_t first, std::uint32_t second,
                                                std::uint32_t third, std::uint32_t fourth, std::uint32_t k0,
                                                std::uint32_t k1, const Put& put) {
  constexpr auto all = std::make_integer_sequence<int, philox_lanes>();
  PhiloxLanes c0[sets], c1[sets], c2[sets], c3[sets];
#pragma GCC unroll 4
  for (int s = 0; s < sets; ++s) {
    // Such that interleaving the lanes' 128-bit results in pairs gives them in order.
    c0[s] = philox_order(all) + std::uint64_t{first + static_cast<std::uint32_t>(s * philox_lanes)};
    c1[s] = PhiloxLanes{} + std::uint64_t{second};
    c2[s] = PhiloxLanes{} + std::uint64_t{third};
    c3[s] = PhiloxLanes{} + std::uint64_t{fourth};
  }
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
    for (int s = 0; s < sets; ++s) {
      const PhiloxLanes p0 = low_product(c0[s], 0xD2511F53u);
      const PhiloxLanes p1 = low_product(c2[s], 0xCD9E8D57u);
      c0[s] = high_halves(p1) ^ c1[s] ^ std::uint64_t{k0};
      c2[s] = high_halves(p0) ^ c3[s] ^ std::uint64_t{k1};
      c1[s] = p1;
      c3[s] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
#pragma GCC unroll 4
  for (int s = 0; s < sets; ++s) {
    const PhiloxLanes low = (c0[s] & 0xffffffffu) | (c1[s] << 32);
    const PhiloxLanes high = (c2[s] & 0xffffffffu) | (c3[s] << 32);
    put(2 * s, interleave<0>(low, high, all));
    put(2 * s + 1, interleave<1>(low, high, all));
  }
}

}  // namespace
}  // namespace lpsgd
