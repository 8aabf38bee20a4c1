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
#if defined(__AVX512F__)
    // A sum that began at +0 is the same whether +0 is added or nothing.
    const __mmask16 mask = _cvtu32_mask16(side), other = _knot_mask16(mask);
    positive[k % kRow] = _mm512_mask_add_ps(positive[k % kRow], mask, positive[k % kRow], v[k]);
    negative[k % kRow] = _mm512_mask_add_ps(negative[k % kRow], other, negative[k % kRow], v[k]);
#else
    positive[k % kRow] += choose(side, v[k], F{});
    negative[k % kRow] += choose(side, F{}, v[k]);
#endif
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
    load_new_block<residuals>(values + at, advanced(residual, at), m - at, v);
    const std::uint64_t bits = onebit_block(v, positive, negative) & valid_bits(m - at);
    sides.positive += __builtin_popcountll(bits);
    store_words(bits, m - at, words + at / 8);
  }
  fold_both(positive, negative, sides.sum);
  return sides;
}

template <bool residuals>
LPSGD_INLINE OnebitSides onebit_sums(const float* values, const float* residual, std::int64_t m,
                                     std::byte* words) {
  if (m <= FixedOrderSum::block) return onebit_sum_block<residuals>(values, residual, m, words);
  OnebitSides sides;
  const auto block = [&](std::int64_t at, std::int64_t count, float* sums) {
    const OnebitSides part =
        onebit_sum_block<residuals>(values + at, advanced(residual, at), count, words + at / 8);
    std::memcpy(sums, part.sum, sizeof part.sum);
    sides.positive += part.positive;
  };
  sum_blocks<2>(0, m, block, sides.sum);
  return sides;
}

/// The residual of a block, of which `left` values exist.
LPSGD_INLINE void onebit_store_residual(F* v, F positive, F negative, std::int64_t left, float* residual) {
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] -= choose(not_negative(v[k]), positive, negative);
  store_block<false>(residual, left, v);
}

/// Writes both means into the record, or the marks of a non-finite bucket.
LPSGD_INLINE bool onebit_means(const OnebitSides& sides, std::int64_t m, float* residual, std::byte* out,
                               float* means) {
  if (!is_finite(sides.sum[0]) || !is_finite(sides.sum[1])) [[unlikely]] {
    return write_non_finite(out, kOnebitScales, 1, residual, m);
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
  OnebitSides sides{{}, __builtin_popcountll(bits)};
  fold_both(positive, negative, sides.sum);
  float means[2] = {};
  if (!onebit_means(sides, m, residual, out, means)) return false;
  store_words(bits, m, out + 8);
  if constexpr (residuals) onebit_store_residual(v, splat(means[0]), splat(means[1]), m, residual);
  return true;
}

template <bool residuals>
LPSGD_INLINE bool onebit_small_bucket(const float* values, float* residual, std::int64_t m, std::byte* out) {
  F v[kVectors];
  load_new_block<residuals>(values, residual, m, v);
  return onebit_block_of<residuals>(v, residual, m, out);
}

template <bool residuals>
LPSGD_INLINE bool onebit_bucket(const float* values, float* residual, std::int64_t m, std::byte* out) {
  const OnebitSides sides = onebit_sums<residuals>(values, residual, m, out + 8);
  float means[2] = {};
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
bool encode_buckets(const CodingJob& job) {
  std::byte* out = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const float* values = job.values + begin;
    float* r = advanced(job.residual, begin);
    const bool finite = m <= kBlock ? onebit_small_bucket<residuals>(values, r, m, out)
                                    : onebit_bucket<residuals>(values, r, m, out);
    out += record_bytes(m, kOnebitScales, 1);
    return finite;
  });
}

/// The means of a record; whether they are finite.
LPSGD_INLINE bool load_means(const std::byte* record, F* means) {
  float both[2];
  std::memcpy(both, record, sizeof both);
  means[0] = splat(both[0]);
  means[1] = splat(both[1]);
  return is_finite(both[0]) && is_finite(both[1]);
}

/// The values of a block's code words, of which `left` exist.
LPSGD_INLINE void decode_block(const std::byte* words, std::int64_t left, const F* means, F* v) {
  std::uint64_t bits = 0;
  if (left > 32) [[likely]]
    std::memcpy(&bits, words, 8);
  else
    std::memcpy(&bits, words, 4);
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] =
      choose(static_cast<std::uint32_t>(bits >> (k * kLanes)), means[0], means[1]);
}

template <bool adds>
bool decode_buckets(const CodingJob& job) {
  const std::byte* in = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    float* out = job.out + begin;
    const std::byte* record = in;
    in += record_bytes(m, kOnebitScales, 1);
    F means[2];
    if (!load_means(record, means)) [[unlikely]]
      return decode_non_finite(out, m);
    for (std::int64_t at = 0; at < m; at += kBlock) {
      F v[kVectors];
      decode_block(record + 8 + at / 8, m - at, means, v);
      store_block<adds>(out + at, m - at, v);
    }
    return true;
  });
}

/// The owner's step of buckets of at most one block: the mean and v stay in registers.
template <bool residuals>
bool reduce_buckets(const CodingJob& job) {
  const float weight = 1.0f / static_cast<float>(job.ranks);
  std::int64_t offset = 0;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const std::int64_t at = offset;
    offset += record_bytes(m, kOnebitScales, 1);
    F v[kVectors] = {};
    bool finite = true;
    for (std::int32_t r = 0; r < job.ranks; ++r) {
      const std::byte* record = job.contributions[r] + at;
      F means[2], q[kVectors];
      finite &= load_means(record, means);
      prefetch_after(record);
      decode_block(record + 8, m, means, q);
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = r == 0 ? q[k] : v[k] + q[k];
    }
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] *= weight;
    float* to = advanced(job.residual, begin);
    if constexpr (residuals) add_new_block(to, m, v);
    clear_after(m, v);
    if (!finite) [[unlikely]]
      return write_non_finite(job.bytes + at, kOnebitScales, 1, to, m);
    return onebit_block_of<residuals>(v, to, m, job.bytes + at);
  });
}

}  // namespace

CodecKernels onebit_kernels() {
  return {
      .encode =
          [](const CodecOptions&, const CodingContext&, const CodingJob& job) {
            return job.residual ? encode_buckets<true>(job) : encode_buckets<false>(job);
          },
      .decode = [](const CodecOptions&, const CodingJob& job,
                   bool adds) { return adds ? decode_buckets<true>(job) : decode_buckets<false>(job); },
      .reduce = [](const CodecOptions&, const CodingContext&, const CodingJob& job,
                   float*) { return job.residual ? reduce_buckets<true>(job) : reduce_buckets<false>(job); },
      .reduce_bucket = kBlock};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow onebit_row() {
  CodecRow row;
  row.columns = true;
  row.error_feedback = true;
  row.record_bytes = [](const CodecOptions&, std::int64_t m) { return record_bytes(m, 2, 1); };
  return row;
}

}  // namespace lpsgd
#endif
