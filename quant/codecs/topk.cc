// Only the largest magnitudes are sent, with error feedback (Aji & Heafield 2017; Stich et al. 2018, section
// 2). Record of a bucket: the kept values' positions in the bucket, ascending, then the values.
#include "quant/cpu_codes_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// The magnitudes' order: bits as an integer; every NaN alike, above infinity.
LPSGD_INLINE I order_of(F v) {
  return Lanes::bits(canonical<Lanes>(v)) & magnitude_mask;
}

/// The keys of a block, of which `left` values exist. v: the values, plus the residual.
template <bool residuals>
LPSGD_INLINE void load_keys(const float* values, const float* residual, std::int64_t left, F* v, I* keys) {
  load_block<residuals>(values, residual, left, v);
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) keys[k] = order_of(v[k]);
}

/// What is kept: magnitudes above `key`, and the first `ties` of those equal to it.
struct Threshold {
  std::int32_t key = 0;
  std::int64_t ties = 0;
};

/// The kept-th largest key of m, from its highest bits down: each pass counts the digits of the keys that
/// agree with those found before.
template <bool residuals>
Threshold find_threshold(const float* values, const float* residual, std::int64_t m, std::int64_t kept) {
  constexpr int digit_bits = 11, digits = 1 << digit_bits;
  Threshold found{0, kept};
  for (int shift = 20; shift >= -2; shift -= digit_bits) {  // bits 30-20, 19-9, 8-0
    const int at_bit = shift > 0 ? shift : 0;
    const int width = shift > 0 ? digit_bits : digit_bits + shift;
    std::int64_t counts[digits] = {};
    const std::int32_t digit_mask = (1 << width) - 1;
    const std::int32_t found_mask = magnitude_mask & ~static_cast<std::int32_t>((1u << at_bit << width) - 1u);
    for (std::int64_t at = 0; at < m; at += kBlock) {
      F v[kVectors];
      I block[kVectors];
      load_keys<residuals>(values + at, advanced(residual, at), m - at, v, block);
      std::int32_t keys[kBlock];
      std::memcpy(keys, block, sizeof keys);
      const std::int64_t left = m - at < kBlock ? m - at : kBlock;
      for (std::int64_t i = 0; i < left; ++i)
        counts[(keys[i] >> at_bit) & digit_mask] += (keys[i] & found_mask) == found.key;
    }
    int digit = digit_mask;
    for (; counts[digit] < found.ties; --digit) found.ties -= counts[digit];
    found.key |= digit << at_bit;
  }
  return found;
}

/// One bit a value of a block: it exists, and its key is `key` or more.
LPSGD_INLINE std::uint64_t at_least(const I* keys, std::int32_t key, std::int64_t left) {
  std::uint64_t bits = 0;
  LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) bits |= std::uint64_t{lowest_bits(keys[k] >= key)}
                                                          << (k * kLanes);
  return left >= kBlock ? bits : bits & ((std::uint64_t{1} << left) - 1);
}

/// Finds the threshold if it is at least `guess` and few keys are: copies those keys and bisects. Returns
/// false otherwise.
template <bool residuals>
bool guess_threshold(const float* values, const float* residual, std::int64_t m, std::int64_t kept,
                     std::int32_t guess, Threshold& found) {
  constexpr std::int64_t capacity = 4096;
  alignas(64) std::int32_t keys[capacity + kBlock];
  std::int64_t count = 0;
  for (std::int64_t at = 0; at < m; at += kBlock) {
    prefetch_block_after(values + at);
    if constexpr (residuals) prefetch_block_after(residual + at);
    F v[kVectors];
    I block[kVectors];
    load_keys<residuals>(values + at, advanced(residual, at), m - at, v, block);
    std::uint64_t bits = at_least(block, guess, m - at);
    if (bits == 0) continue;
    std::int32_t own[kBlock];
    std::memcpy(own, block, sizeof own);
    for (; bits != 0; bits &= bits - 1) keys[count++] = own[__builtin_ctzll(bits)];
    if (count > capacity) return false;
  }
  if (count < kept) return false;
  for (int j = 0; j < kLanes; ++j) keys[count + j] = -1;  // to a whole vector
  const auto count_from = [&](std::int32_t key) {
    I sum = {};
    for (std::int64_t at = 0; at < count; at += kLanes) sum -= load<I>(keys + at) >= key;
    std::int64_t out = 0;
    for (int j = 0; j < kLanes; ++j) out += sum[j];
    return out;
  };
  std::int32_t low = guess, high = magnitude_mask;  // count_from(low) >= kept > count_from(high)
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (count_from(middle) >= kept ? low : high) = middle;
  }
  found = {low, kept - count_from(high)};
  return true;
}

template <bool residuals>
bool encode_bucket(const float* values, float* residual, std::int64_t m, std::int64_t kept,
                   Threshold threshold, std::byte* out) {
  std::byte* positions = out;
  std::byte* chosen = out + 4 * kept;
  std::int32_t top = 0;
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    I keys[kVectors];
    load_keys<residuals>(values + at, advanced(residual, at), m - at, v, keys);
    std::uint64_t bits = at_least(keys, threshold.key, m - at);
    if (bits != 0) {
      float block[kBlock];
      std::memcpy(block, v, sizeof block);
      for (; bits != 0; bits &= bits - 1) {
        const int i = __builtin_ctzll(bits);
        const float value = canonical<ScalarLanes>(block[i]);
        const std::int32_t key = ScalarLanes::bits(value) & magnitude_mask;
        if (key == threshold.key && threshold.ties-- <= 0) continue;
        store(positions, static_cast<std::uint32_t>(at + i));
        store(chosen, value);
        positions += 4;
        chosen += 4;
        top = key > top ? key : top;
        block[i] = value - (value + 0.0f);
      }
      std::memcpy(v, block, sizeof block);
    }
    if constexpr (residuals) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = canonical<Lanes>(v[k]);
      store_block<false>(residual + at, m - at, v);
    }
  }
  return top < infinity_bits;
}

/// The buckets of a tensor are alike, so each one's threshold is the guess for the next one.
class Encoder {
 public:
  bool encode(const float* values, float* residual, std::int64_t m, std::int64_t kept, std::byte* out) {
    return residual ? encode_as<true>(values, residual, m, kept, out)
                    : encode_as<false>(values, nullptr, m, kept, out);
  }

 private:
  template <bool residuals>
  bool encode_as(const float* values, float* residual, std::int64_t m, std::int64_t kept, std::byte* out) {
    Threshold threshold;
    if (guess_ == 0 || !guess_threshold<residuals>(values, residual, m, kept, guess_, threshold))
      threshold = find_threshold<residuals>(values, residual, m, kept);
    constexpr std::int32_t margin = 1 << 22;  // half a power of two
    guess_ = threshold.key > margin ? threshold.key - margin : 0;
    return encode_bucket<residuals>(values, residual, m, kept, threshold, out);
  }

  std::int32_t guess_ = 0;
};

bool encode(const CodecOptions& options, const CodingContext&, const CodingJob& job) {
  const double density = options_of<TopkOptions>(options).density;
  Encoder encoder;
  std::byte* out = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const std::int64_t kept = topk_kept(density, m);
    const bool finite = encoder.encode(job.values + begin, advanced(job.residual, begin), m, kept, out);
    out += 8 * kept;
    return finite;
  });
}

/// Adds a record to the m values at `out`, touching the kept values only. A position outside the bucket is
/// ignored; values of one position add up. Returns whether all are finite: of the values that were added or,
/// where `out` held zeros, of the sums.
bool add_record(const std::byte* record, std::int64_t m, std::int64_t kept, bool adds, float* out) {
  bool finite = true;
  for (std::int64_t i = 0; i < kept; ++i) {
    const std::int64_t position = load<std::uint32_t>(record + 4 * i);
    if (position >= m) continue;
    const float value = load<float>(record + 4 * (kept + i));
    float& to = out[position];
    to = lpsgd::add<ScalarLanes>(to, value);
    finite &= is_finite(adds ? value : to);
  }
  return finite;
}

bool decode(const CodecOptions& options, const CodingJob& job, bool adds) {
  const double density = options_of<TopkOptions>(options).density;
  if (!adds) std::memset(job.out, 0, static_cast<std::size_t>(job.n) * sizeof(float));
  const std::byte* in = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const std::int64_t kept = topk_kept(density, m);
    const std::byte* record = in;
    in += 8 * kept;
    return add_record(record, m, kept, adds, job.out + begin);
  });
}

/// The owner's step: the mean of a bucket stays in the cache.
bool reduce(const CodecOptions& options, const CodingContext&, const CodingJob& job, float* mean) {
  const double density = options_of<TopkOptions>(options).density;
  const float weight = 1.0f / static_cast<float>(job.ranks);
  Encoder encoder;
  std::int64_t offset = 0;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const std::int64_t kept = topk_kept(density, m), at = offset;
    offset += 8 * kept;
    std::memset(mean, 0, static_cast<std::size_t>(m) * sizeof(float));
    for (std::int32_t r = 0; r < job.ranks; ++r) add_record(job.contributions[r] + at, m, kept, true, mean);
    for (std::int64_t i = 0; i < m; ++i) mean[i] *= weight;
    return encoder.encode(mean, advanced(job.residual, begin), m, kept, job.bytes + at);
  });
}

}  // namespace

CodecKernels topk_kernels() {
  return {.encode = encode, .decode = decode, .reduce = reduce};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow topk_row() {
  CodecRow row;
  row.error_feedback = true;
  row.bucket = 4096;
  row.options = [](config::Visitor& v, CodecOptions& options) {
    v.field("density", std::get<TopkOptions>(options).density,
            "the share of each bucket's values that is sent: the largest magnitudes",
            config::Range{.min = 0, .max = 1, .min_open = true});
  };
  row.record_bytes = [](const CodecOptions& options, std::int64_t m) {
    return 8 * topk_kept(options_of<TopkOptions>(options).density, m);
  };
  return row;
}

}  // namespace lpsgd
#endif
