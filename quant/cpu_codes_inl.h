// Packs and unpacks codes of 1, 2, 4, 8 or 16 bits: value i of a bucket is at bit i*bits of its words.
#pragma once

#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// The lowest bit of each lane, one bit a lane.
LPSGD_INLINE std::uint32_t lowest_bits(I x) {
#if defined(__AVX512F__)
  return _cvtmask16_u32(_mm512_movepi32_mask(reinterpret_cast<Native>(x << 31)));
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(Lanes::value(x << 31)));
#else
  return static_cast<std::uint32_t>(_mm_movemask_ps(Lanes::value(x << 31)));
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/// pack_block() for 2, 4 and 8 bits, in two halves of 32 codes. Packs work in each 128 bits, so what they
/// join has its 64-bit parts 1 and 2 in turn.
template <int bits>
LPSGD_INLINE void pack_bytes(const I* codes, std::byte* out) {
  const auto bytes_of = [&](int first) {
    const auto c = [&](int k) { return reinterpret_cast<Native>(codes[first + k]); };
    const Native words_a = _mm256_packus_epi32(c(0), c(1));
    const Native words_b = _mm256_packus_epi32(c(2), c(3));
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words_a, words_b),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  };
  const auto ordered = [](Native x) { return _mm256_permute4x64_epi64(x, 0b11011000); };
  const Native low = bytes_of(0), high = bytes_of(4);
  if constexpr (bits == 8) {
    store(out, low);
    store(out + 32, high);
  } else if constexpr (bits == 4) {
    const auto pairs = [](Native x) { return _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x1001)); };
    store(out, ordered(_mm256_packus_epi16(pairs(low), pairs(high))));
  } else {
    const auto fours = [](Native x) {
      const Native pairs = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x0401));
      return _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001));
    };
    const Native words = ordered(_mm256_packus_epi32(fours(low), fours(high)));
    store(out, _mm256_castsi256_si128(ordered(_mm256_packus_epi16(words, words))));
  }
}
#elif !defined(__AVX2__)
/// pack_block() for 2, 4 and 8 bits.
template <int bits>
LPSGD_INLINE void pack_bytes(const I* codes, std::byte* out) {
  std::uint8_t bytes[kBlock];
  for (int k = 0; k < kVectors; ++k) store(bytes + k * kLanes, __builtin_convertvector(codes[k], B));
  if constexpr (bits == 8) {
    std::memcpy(out, bytes, sizeof bytes);
  } else {
    constexpr int per_byte = 8 / bits;
    std::uint8_t packed[kBlock / per_byte];
    for (int i = 0; i < kBlock / per_byte; ++i) {
      unsigned x = 0;
      for (int j = 0; j < per_byte; ++j) x |= unsigned{bytes[i * per_byte + j]} << (j * bits);
      packed[i] = static_cast<std::uint8_t>(x);
    }
    std::memcpy(out, packed, sizeof packed);
  }
}
#endif

/// Packs a block of 64 codes into 8*bits bytes.
template <int bits>
LPSGD_INLINE void pack_block(const I* codes, std::byte* out) {
  if constexpr (bits == 1) {
    std::uint64_t word = 0;
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) word |= std::uint64_t{lowest_bits(codes[k])}
                                                            << (k * kLanes);
    store(out, word);
    return;
  }
#if defined(__AVX512F__)
  const auto c = [&](int k) { return reinterpret_cast<Native>(codes[k]); };
  if constexpr (bits == 16) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) store(out + k * 32, _mm512_cvtepi32_epi16(c(k)));
  } else {
    // Bytes of four vectors; dword 4j+k of the packs holds lane group j of vector k, so transpose.
    const Native words_a = _mm512_packus_epi32(c(0), c(1));
    const Native words_b = _mm512_packus_epi32(c(2), c(3));
    const Native order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const Native bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(words_a, words_b));
    if constexpr (bits == 8) {
      store(out, bytes);
    } else if constexpr (bits == 4) {
      store(out, _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001))));
    } else {
      const Native pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x0401));
      store(out, _mm512_cvtepi32_epi8(_mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001))));
    }
  }
#else
  if constexpr (bits == 16) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k)
        store(out + k * kLanes * 2, __builtin_convertvector(codes[k], H));
  } else {
    pack_bytes<bits>(codes, out);
  }
#endif
}

/// The inverse. A lane may have bits of other codes above its own `bits`.
template <int bits>
LPSGD_INLINE void unpack_block(const std::byte* in, I* codes) {
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
    const std::byte* p = in + k * kLanes * bits / 8;
    if constexpr (bits == 1) {
      codes[k] =
          splat_bits(static_cast<std::int32_t>(load<std::uint64_t>(in) >> (k * kLanes))) >> lane_numbers();
    } else if constexpr (bits == 16) {
      codes[k] = load_halves(p);
    } else if constexpr (bits == 8) {
      codes[k] = load_bytes(p);
    } else {
      // The codes of one vector fill at most two words: give each lane its word and shift its code down.
      constexpr int bytes = kLanes * bits / 8;
      I words;
      if constexpr (bytes == 8) {
        const std::int32_t low = load<std::int32_t>(p);
        const std::int32_t high = load<std::int32_t>(p + 4);
        words = lane_numbers() < 8 ? splat_bits(low) : splat_bits(high);
      } else {
        std::int32_t word = 0;
        std::memcpy(&word, p, bytes);
        words = splat_bits(word);
      }
      codes[k] = words >> ((lane_numbers() & (32 / bits - 1)) * bits);
    }
  }
}

/// Stores a block of codes, of which `left` exist.
template <int bits>
LPSGD_INLINE void store_codes(const I* codes, std::byte* out, std::int64_t left) {
  if (left >= kBlock) [[likely]] {
    pack_block<bits>(codes, out);
    return;
  }
  I kept[kVectors];
  std::memcpy(kept, codes, sizeof kept);
  clear_after(left, kept);
  std::byte padded[8 * bits];
  pack_block<bits>(kept, padded);
  unpad(padded, 4 * code_words(left, bits), out);
}

template <int bits>
LPSGD_INLINE void load_codes(const std::byte* in, std::int64_t left, I* codes) {
  std::byte padded[8 * bits];
  prefetch_after<8 * bits>(in);
  if (left < kBlock) [[unlikely]] {
    pad(in, 4 * code_words(left, bits), padded, sizeof padded);
    in = padded;
  }
  unpack_block<bits>(in, codes);
}

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
