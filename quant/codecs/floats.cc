// Codecs without a bucket scale: none (float32), fp16, bf16. The encoding is an array of the values.
#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// The largest magnitude's bits: below infinity's if all values are finite.
struct FiniteCheck {
  I top = {};
  LPSGD_INLINE void add(const F* v) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) top = max(top, Lanes::bits(v[k]) & magnitude_mask);
  }
  LPSGD_INLINE bool finite() const { return max_of(top) < infinity_bits; }
};

struct None {
  using Code = float;
  LPSGD_INLINE static void encode(const F* v, Code* out) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) store(out + k * kLanes, canonical<Lanes>(v[k]));
  }
  LPSGD_INLINE static void decode(const Code* in, F* v) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = canonical<Lanes>(load<F>(in + k * kLanes));
  }
};

struct Bf16 {
  using Code = std::uint16_t;
  LPSGD_INLINE static void encode(const F* v, Code* out) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      const I x = Lanes::bits(v[k]);
      const I rounded = ((x + 0x7fff + ((x >> 16) & 1)) >> 16) & 0xffff;
      store(out + k * kLanes, __builtin_convertvector(v[k] == v[k] ? rounded : splat_bits(0x7fc0), H));
    }
  }
  LPSGD_INLINE static void decode(const Code* in, F* v) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] =
        canonical<Lanes>(Lanes::value(load_halves(in + k * kLanes) << 16));
  }
};

struct Fp16 {
  using Code = std::uint16_t;
  LPSGD_INLINE static void encode(const F* v, Code* out) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
#if defined(__AVX512F__)
      const F x = canonical<Lanes>(v[k]);
      store(out + k * kLanes, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
      const F x = canonical<Lanes>(v[k]);
      store(out + k * kLanes, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
      for (int j = 0; j < kLanes; ++j) out[k * kLanes + j] = to_fp16(v[k][j]);
#endif
    }
  }
  LPSGD_INLINE static void decode(const Code* in, F* v) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
#if defined(__AVX512F__)
      v[k] = canonical<Lanes>(_mm512_cvtph_ps(load<__m256i>(in + k * kLanes)));
#elif defined(__AVX2__)
      v[k] = canonical<Lanes>(_mm256_cvtph_ps(load<__m128i>(in + k * kLanes)));
#else
      for (int j = 0; j < kLanes; ++j) v[k][j] = from_fp16(in[k * kLanes + j]);
#endif
    }
  }
};

/// The values of a block of codes, of which `left` exist.
template <class T>
LPSGD_INLINE void decode_block(const std::byte* in, std::int64_t left, F* v) {
  using Code = typename T::Code;
  Code codes[kBlock];
  prefetch_after<sizeof codes>(in);
  if (left >= kBlock) [[likely]]
    std::memcpy(codes, in, sizeof codes);
  else
    pad(in, left * static_cast<std::int64_t>(sizeof(Code)), codes, sizeof codes);
  T::decode(codes, v);
}

/// Encodes a block of which `left` values exist; with `residuals` the error becomes the residual.
template <class T, bool residuals>
LPSGD_INLINE void encode_block(F* v, float* residual, std::int64_t left, FiniteCheck& check, std::byte* out) {
  using Code = typename T::Code;
  check.add(v);
  Code codes[kBlock];
  T::encode(v, codes);
  if (left >= kBlock) [[likely]]
    std::memcpy(out, codes, sizeof codes);
  else
    unpad(codes, left * static_cast<std::int64_t>(sizeof(Code)), out);
  if constexpr (residuals) {
    F q[kVectors];
    T::decode(codes, q);
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = canonical<Lanes>(v[k] - q[k]);
    store_block<false>(residual, left, v);
  }
}

template <class T>
constexpr auto code_bytes = static_cast<std::int64_t>(sizeof(typename T::Code));

template <class T, bool residuals>
bool encode_values(const CodingJob& job) {
  const std::int64_t n = job.n;
  FiniteCheck check;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    F v[kVectors];
    load_new_block<residuals>(job.values + at, advanced(job.residual, at), n - at, v);
    encode_block<T, residuals>(v, advanced(job.residual, at), n - at, check, job.bytes + at * code_bytes<T>);
  }
  return check.finite();
}

template <class T, bool adds>
bool decode_values(const CodingJob& job) {
  const std::int64_t n = job.n;
  FiniteCheck check;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    F v[kVectors];
    decode_block<T>(job.bytes + at * code_bytes<T>, n - at, v);
    check.add(v);
    store_block<adds>(job.out + at, n - at, v);
  }
  return check.finite();
}

/// The owner's step: the mean of a block stays in registers.
template <class T, bool residuals>
bool reduce_values(const CodingJob& job) {
  const float weight = 1.0f / static_cast<float>(job.ranks);
  const std::int64_t n = job.n;
  FiniteCheck check;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    F v[kVectors] = {};
    for (std::int32_t r = 0; r < job.ranks; ++r) {
      F q[kVectors];
      decode_block<T>(job.contributions[r] + at * code_bytes<T>, n - at, q);
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = r == 0 ? q[k] : add<Lanes>(v[k], q[k]);
    }
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] *= weight;
    if constexpr (residuals) add_new_block(job.residual + at, n - at, v);
    encode_block<T, residuals>(v, advanced(job.residual, at), n - at, check, job.bytes + at * code_bytes<T>);
  }
  return check.finite();
}

template <class T>
CodecKernels float_kernels() {
  return {
      .encode =
          [](const CodecOptions&, const CodingContext&, const CodingJob& job) {
            return job.residual ? encode_values<T, true>(job) : encode_values<T, false>(job);
          },
      .decode = [](const CodecOptions&, const CodingJob& job,
                   bool adds) { return adds ? decode_values<T, true>(job) : decode_values<T, false>(job); },
      .reduce =
          [](const CodecOptions&, const CodingContext&, const CodingJob& job, float*) {
            return job.residual ? reduce_values<T, true>(job) : reduce_values<T, false>(job);
          }};
}

}  // namespace

CodecKernels none_kernels() {
  return float_kernels<None>();
}
CodecKernels fp16_kernels() {
  return float_kernels<Fp16>();
}
CodecKernels bf16_kernels() {
  return float_kernels<Bf16>();
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow none_row() {
  CodecRow row;
  row.bucketed = false;
  row.record_bytes = [](const CodecOptions&, std::int64_t m) { return 4 * m; };
  return row;
}
CodecRow fp16_row() {
  CodecRow row;
  row.bucketed = false;
  row.record_bytes = [](const CodecOptions&, std::int64_t m) { return 2 * m; };
  return row;
}
CodecRow bf16_row() {
  return fp16_row();
}

}  // namespace lpsgd
#endif
