// Microscaling formats (OCP MX v1.0) as a codec: blocks of 32 values with a scale of one byte, codes of 4 or
// 8 bits. Record of a bucket: its blocks' scales, filled up with zeros to whole words, then the codes.
#include "quant/codecs/mx_device.h"
#include "quant/cpu_codes_inl.h"
#include "quant/cpu_dither_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

constexpr int kBlockVectors = static_cast<int>(mx_block) / kLanes;
constexpr int kScales = kBlock / static_cast<int>(mx_block);  // of 64 values

/// M::value(); elements of 4 bits are looked up in a register.
template <class M>
LPSGD_INLINE F value_of(I code, float x) {
  if constexpr (M::bits == 4) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps(reinterpret_cast<Native>(code), M::value(lane_numbers(), 1.0f)) * x;
#elif defined(__AVX2__)
    const F of_magnitude = M::value(lane_numbers(), 1.0f);
    const F found = _mm256_permutevar8x32_ps(of_magnitude, reinterpret_cast<Native>(code));
    return Lanes::value(Lanes::bits(found * x) ^ ((code & 8) << 28));
#endif
  }
  return M::value(code, x);
}

/// 64 values, of which `left` exist: their scales, codes and residual. Returns whether all have a finite
/// scale.
template <class M, bool residuals>
LPSGD_INLINE bool code_block(F* v, std::int64_t left, DitherStream& dither, std::byte* scales,
                             std::byte* words, float* residual) {
  const std::uint16_t* halves = nullptr;
  if constexpr (M::dithered) halves = dither.block();
  I codes[kVectors];
  bool all = true;
  LPSGD_UNROLL for (int b = 0; b < kScales; ++b) {
    F* const of_block = v + b * kBlockVectors;
    I top = {};
    LPSGD_UNROLL for (int k = 0; k < kBlockVectors; ++k) top =
        max(top, Lanes::bits(of_block[k]) & magnitude_mask);
    const std::int32_t scale = M::scale_of(max_of(top));
    if (b * mx_block < left) scales[b] = static_cast<std::byte>(scale);
    if (scale == mx_nan) [[unlikely]] {
      all = false;
      LPSGD_UNROLL for (int k = 0; k < kBlockVectors; ++k) {
        codes[b * kBlockVectors + k] = I{};
        of_block[k] = splat(canonical_nan());
      }
      continue;
    }
    const float x = M::multiplier(scale), inverse = M::inverse(scale);
    LPSGD_UNROLL for (int k = 0; k < kBlockVectors; ++k) {
      I half = {};
      if constexpr (M::dithered) half = load_halves(halves + (b * kBlockVectors + k) * kLanes);
      I& code = codes[b * kBlockVectors + k];
      code = M::code(of_block[k], inverse, half);
      if constexpr (residuals) of_block[k] -= value_of<M>(code, x);
    }
  }
  store_codes<M::bits>(codes, words, left);
  if constexpr (residuals) store_block<false>(residual, left, v);
  return all;
}

/// The values of 64 codes, of which `left` exist; NaN where a block has none. Returns whether all have
/// values.
template <class M>
LPSGD_INLINE bool values_of_block(const std::byte* scales, const std::byte* words, std::int64_t left, F* v) {
  I codes[kVectors];
  load_codes<M::bits>(words, left, codes);
  bool all = true;
  LPSGD_UNROLL for (int b = 0; b < kScales; ++b) {
    const std::int32_t scale = b * mx_block < left ? static_cast<std::int32_t>(scales[b]) : 0;
    const bool has_values = M::has_values(scale);
    all &= has_values;
    const float x = M::multiplier(scale);
    LPSGD_UNROLL for (int k = b * kBlockVectors; k < (b + 1) * kBlockVectors; ++k) v[k] =
        value_of<M>(codes[k], x);
    if (!has_values) [[unlikely]]
      for (int k = b * kBlockVectors; k < (b + 1) * kBlockVectors; ++k) v[k] = splat(canonical_nan());
  }
  return all;
}

/// Where a bucket's record has what.
struct Record {
  std::int64_t scale_bytes, bytes;
  LPSGD_INLINE Record(std::int64_t m, int bits)
      : scale_bytes(mx_scale_bytes(m)), bytes(scale_bytes + record_bytes(m, 0, bits)) {}
};

/// Zeros up to a whole word of scales.
LPSGD_INLINE void fill_scales(std::byte* record, std::int64_t m, std::int64_t scale_bytes) {
  for (std::int64_t b = (m + mx_block - 1) / mx_block; b < scale_bytes; ++b) record[b] = std::byte{0};
}

template <class M, bool residuals>
bool encode_buckets(const CodingContext& context, const CodingJob& job) {
  DitherStream dither(context, job.tensor);
  std::byte* out = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const Record record(m, M::bits);
    if constexpr (M::dithered) dither.seek(job.first + begin);
    bool all = true;
    for (std::int64_t at = 0; at < m; at += kBlock) {
      F v[kVectors];
      float* const r = advanced(job.residual, begin + at);
      load_new_block<residuals>(job.values + begin + at, r, m - at, v);
      all &= code_block<M, residuals>(v, m - at, dither, out + at / mx_block,
                                      out + record.scale_bytes + at * M::bits / 8, r);
    }
    fill_scales(out, m, record.scale_bytes);
    out += record.bytes;
    return all;
  });
}

template <class M, bool adds>
bool decode_buckets(const CodingJob& job) {
  const std::byte* in = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const Record record(m, M::bits);
    bool all = true;
    for (std::int64_t at = 0; at < m; at += kBlock) {
      F v[kVectors];
      all &= values_of_block<M>(in + at / mx_block, in + record.scale_bytes + at * M::bits / 8, m - at, v);
      store_block<adds>(job.out + begin + at, m - at, v);
    }
    in += record.bytes;
    return all;
  });
}

/// The owner's step: the mean stays in registers.
template <class M, bool residuals>
bool reduce_buckets(const CodingContext& context, const CodingJob& job) {
  const float weight = 1.0f / static_cast<float>(job.ranks);
  DitherStream dither(context, job.tensor);
  std::int64_t offset = 0;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const Record record(m, M::bits);
    std::byte* const out = job.bytes + offset;
    if constexpr (M::dithered) dither.seek(job.first + begin);
    bool all = true;
    for (std::int64_t at = 0; at < m; at += kBlock) {
      F v[kVectors] = {};
      const std::int64_t codes_at = record.scale_bytes + at * M::bits / 8;
      for (std::int32_t r = 0; r < job.ranks; ++r) {
        const std::byte* const in = job.contributions[r] + offset;
        F q[kVectors];
        values_of_block<M>(in + at / mx_block, in + codes_at, m - at, q);
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = r == 0 ? q[k] : v[k] + q[k];
      }
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] *= weight;
      float* const residual = advanced(job.residual, begin + at);
      if constexpr (residuals) add_new_block(residual, m - at, v);
      clear_after(m - at, v);
      all &= code_block<M, residuals>(v, m - at, dither, out + at / mx_block, out + codes_at, residual);
    }
    fill_scales(out, m, record.scale_bytes);
    offset += record.bytes;
    return all;
  });
}

bool encode_mx(const CodecOptions& options, const CodingContext& context, const CodingJob& job) {
  return with_mx<Lanes>(options_of<MxOptions>(options), [&](auto rules) {
    using M = decltype(rules);
    return job.residual ? encode_buckets<M, true>(context, job) : encode_buckets<M, false>(context, job);
  });
}

bool decode_mx(const CodecOptions& options, const CodingJob& job, bool adds) {
  return with_mx_blocks<Lanes>(options_of<MxOptions>(options), [&](auto blocks) {
    using M = decltype(blocks);
    return adds ? decode_buckets<M, true>(job) : decode_buckets<M, false>(job);
  });
}

bool reduce_mx(const CodecOptions& options, const CodingContext& context, const CodingJob& job, float*) {
  return with_mx<Lanes>(options_of<MxOptions>(options), [&](auto rules) {
    using M = decltype(rules);
    return job.residual ? reduce_buckets<M, true>(context, job) : reduce_buckets<M, false>(context, job);
  });
}

}  // namespace

CodecKernels mx_kernels() {
  return {.encode = encode_mx, .decode = decode_mx, .reduce = reduce_mx};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow mx_row() {
  using Element = MxOptions::Element;
  using Rounding = MxOptions::Rounding;
  CodecRow row;
  row.bucket = 512;
  row.options = [](config::Visitor& v, CodecOptions& options) {
    auto& mx = std::get<MxOptions>(options);
    v.choice("element", mx.element,
             {{"e2m1", Element::e2m1}, {"e4m3", Element::e4m3}, {"e5m2", Element::e5m2}},
             "exponent and mantissa bits of the floats that are sent: 4 bits with the sign, or 8");
    v.choice("rounding", mx.rounding, {{"stochastic", Rounding::stochastic}, {"nearest", Rounding::nearest}},
             "up or down at random, without bias; or to the nearest, ties to even");
  };
  row.record_bytes = [](const CodecOptions& options, std::int64_t m) {
    const int bits = options_of<MxOptions>(options).element == Element::e2m1 ? 4 : 8;
    return mx_scale_bytes(m) + record_bytes(m, 0, bits);
  };
  return row;
}

}  // namespace lpsgd
#endif
