// 1-bit SGD (Seide et al. 2014, section 3; EDBT 2018, section 2.2): q_i is the mean of the bucket's values of
// v_i's side of zero, residual_i = v_i - q_i. Record: avg_pos, avg_neg, then bit i = (v_i >= 0).
#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

constexpr std::int64_t kOnebitScales = 2;

struct OnebitSides {
  float sum[2] = {0, 0};  // v >= 0, v < 0
  std::int64_t positive = 0;
};

LPSGD_INLINE std::uint64_t valid_bits(std::int64_t left) {
  return left >= kBlock ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
}

LPSGD_INLINE void store_words(std::uint64_t bits, std::int64_t left, std::byte* out) {
  if (left > 32)
    std::memcpy(out, &bits, 8);
  else
    std::memcpy(out, &bits, 4);
}

/// The sign bits of a block; adds it to the partial sums of both sides.
LPSGD_INLINE std::uint64_t onebit_block(const F* v, F* positive, F* negative) {
  std::uint64_t bits = 0;
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
    const std::uint32_t side = not_negative(v[k]);
    bits |= std::uint64_t{side} << (k * kLanes);
    positive[k % kRow] += choose(side, v[k], F{});
    negative[k % kRow] += choose(side, F{}, v[k]);
  }
  return bits;
}

/// m values, at most one block of the sum: writes their code words and returns both sums.
template <bool residuals>
LPSGD_INLINE OnebitSides onebit_sum_block(const float* values, const float* residual, std::int64_t m,
                                          std::byte* words) {
  OnebitSides sides;
  F positive[kRow] = {};
  F negative[kRow] = {};
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    const std::uint64_t bits = onebit_block(v, positive, negative) & valid_bits(m - at);
    sides.positive += __builtin_popcountll(bits);
    store_words(bits, m - at, words + at / 8);
  }
  sides.sum[0] = fold(positive);
  sides.sum[1] = fold(negative);
  return sides;
}

template <bool residuals>
[[gnu::noinline]] OnebitSides onebit_sums(const float* values, const float* residual, std::int64_t m,
                                          std::byte* words) {
  OnebitSides sides;
  FixedOrderSum upper[2];
  for (std::int64_t at = 0; at < m; at += FixedOrderSum::block) {
    const std::int64_t count = m - at < FixedOrderSum::block ? m - at : FixedOrderSum::block;
    const OnebitSides part =
        onebit_sum_block<residuals>(values + at, advanced(residual, at), count, words + at / 8);
    upper[0].add(part.sum[0]);
    upper[1].add(part.sum[1]);
    sides.positive += part.positive;
  }
  sides.sum[0] = upper[0].total();
  sides.sum[1] = upper[1].total();
  return sides;
}

/// What is left of a block, `left` values of which exist.
LPSGD_INLINE void onebit_store_residual(F* v, F positive, F negative, std::int64_t left, float* residual) {
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] -= choose(not_negative(v[k]), positive, negative);
  store_block<false>(residual, left, v);
}

/// Both means into the record, or what stands for a bucket without numbers.
LPSGD_INLINE bool onebit_means(const OnebitSides& sides, std::int64_t m, float* residual, std::byte* out,
                               float* means) {
  if (!is_finite(sides.sum[0]) || !is_finite(sides.sum[1])) [[unlikely]] {
    write_poisoned(out, kOnebitScales, 1, residual, m);
    return false;
  }
  means[0] = mean(sides.sum[0], sides.positive);
  means[1] = mean(sides.sum[1], m - sides.positive);
  std::memcpy(out, means, 8);
  return true;
}

/// A bucket of at most one block, v in registers.
template <bool residuals>
LPSGD_INLINE bool onebit_block_of(F* v, float* residual, std::int64_t m, std::byte* out) {
  F positive[kRow] = {};
  F negative[kRow] = {};
  const std::uint64_t bits = onebit_block(v, positive, negative) & valid_bits(m);
  const OnebitSides sides{{fold(positive), fold(negative)}, __builtin_popcountll(bits)};
  float means[2];
  if (!onebit_means(sides, m, residual, out, means)) return false;
  store_words(bits, m, out + 8);
  if constexpr (residuals) onebit_store_residual(v, splat(means[0]), splat(means[1]), m, residual);
  return true;
}

template <bool residuals>
LPSGD_INLINE bool onebit_small_bucket(const float* values, float* residual, std::int64_t m, std::byte* out) {
  F v[kVectors];
  load_block<residuals>(values, residual, m, v);
  return onebit_block_of<residuals>(v, residual, m, out);
}

template <bool residuals>
LPSGD_INLINE bool onebit_bucket(const float* values, float* residual, std::int64_t m, std::byte* out) {
  const OnebitSides sides = m <= FixedOrderSum::block
                                ? onebit_sum_block<residuals>(values, residual, m, out + 8)
                                : onebit_sums<residuals>(values, residual, m, out + 8);
  float means[2];
  if (!onebit_means(sides, m, residual, out, means)) return false;
  if constexpr (residuals) {
    for (std::int64_t at = 0; at < m; at += kBlock) {
      F v[kVectors];
      load_block<true>(values + at, residual + at, m - at, v);
      onebit_store_residual(v, splat(means[0]), splat(means[1]), m - at, residual + at);
    }
  }
  return true;
}

template <bool residuals>
bool onebit_encode_buckets(const float* values, float* residual, std::int64_t n, std::int64_t bucket,
                           std::byte* out) {
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    float* r = advanced(residual, begin);
    finite &= m <= kBlock ? onebit_small_bucket<residuals>(values + begin, r, m, out)
                          : onebit_bucket<residuals>(values + begin, r, m, out);
    out += record_bytes(m, kOnebitScales, 1);
  }
  return finite;
}

bool encode(const CodecSpec&, const std::byte*, const float* values, float* residual, std::int64_t n,
            std::int64_t, std::int64_t bucket, const CodingContext&, std::byte* out) {
  return residual ? onebit_encode_buckets<true>(values, residual, n, bucket, out)
                  : onebit_encode_buckets<false>(values, nullptr, n, bucket, out);
}

template <bool adds>
bool onebit_decode_buckets(const std::byte* in, std::int64_t n, std::int64_t bucket, float* out) {
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    float means[2];
    std::memcpy(means, in, sizeof means);
    if (is_finite(means[0]) && is_finite(means[1])) [[likely]] {
      const F positive = splat(means[0]);
      const F negative = splat(means[1]);
      for (std::int64_t at = 0; at < m; at += kBlock) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, in + 8 + at / 8, m - at > 32 ? 8 : 4);
        F v[kVectors];
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] =
            choose(static_cast<std::uint32_t>(bits >> (k * kLanes)), positive, negative);
        store_block<adds>(out + begin + at, m - at, v);
      }
    } else {
      decode_poisoned(out + begin, m);
      finite = false;
    }
    in += record_bytes(m, kOnebitScales, 1);
  }
  return finite;
}

bool decode(const CodecSpec&, const std::byte*, const std::byte* in, std::int64_t n, std::int64_t bucket,
            bool adds, float* out) {
  return adds ? onebit_decode_buckets<true>(in, n, bucket, out)
              : onebit_decode_buckets<false>(in, n, bucket, out);
}

/// The owner's step of buckets of at most one block: the mean and v stay in registers.
template <bool residuals>
bool reduce_buckets(const std::byte* const* contributions, std::size_t ranks, float* residual, std::int64_t n,
                    std::int64_t bucket, std::byte* out) {
  const float weight = 1.0f / static_cast<float>(ranks);
  bool finite = true;
  std::int64_t offset = 0;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    F v[kVectors] = {};
    bool numbers = true;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::byte* record = contributions[r] + offset;
      float means[2];
      std::memcpy(means, record, sizeof means);
      numbers &= is_finite(means[0]) && is_finite(means[1]);
      const F positive = splat(means[0]);
      const F negative = splat(means[1]);
      std::uint64_t bits = 0;
      if (m > 32) [[likely]]
        std::memcpy(&bits, record + 8, 8);
      else
        std::memcpy(&bits, record + 8, 4);
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
        const F q = choose(static_cast<std::uint32_t>(bits >> (k * kLanes)), positive, negative);
        v[k] = r == 0 ? q : v[k] + q;
      }
    }
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] *= weight;
    float* to = advanced(residual, begin);
    if constexpr (residuals) add_block(to, m, v);
    if (m < kBlock) [[unlikely]] {
      for (int k = 0; k < kVectors; ++k)
        v[k] = lane_numbers() + k * kLanes < static_cast<std::int32_t>(m) ? v[k] : F{};
    }
    if (numbers) [[likely]] {
      finite &= onebit_block_of<residuals>(v, to, m, out + offset);
    } else {
      write_poisoned(out + offset, kOnebitScales, 1, to, m);
      finite = false;
    }
    offset += record_bytes(m, kOnebitScales, 1);
  }
  return finite;
}

bool reduce(const CodecSpec&, const std::byte* const* contributions, std::size_t ranks, float* residual,
            std::int64_t n, std::int64_t, std::int64_t bucket, const CodingContext&, float*, std::byte* out) {
  return residual ? reduce_buckets<true>(contributions, ranks, residual, n, bucket, out)
                  : reduce_buckets<false>(contributions, ranks, nullptr, n, bucket, out);
}

}  // namespace

CodecKernels onebit_kernels() {
  return {.encode = encode, .decode = decode, .reduce = reduce, .reduce_bucket = kBlock};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow onebit_row() {
  CodecRow row;
  row.columns = true;
  row.error_feedback = true;
  row.record_bytes = [](const CodecSpec&, std::int64_t m) { return record_bytes(m, 2, 1); };
  return row;
}

}  // namespace lpsgd
#endif
