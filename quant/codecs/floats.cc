// Codecs without a bucket scale: none (float32), fp16, bf16. The encoding is a natural array.
#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// Any lane's magnitude bits not below infinity's, gathered over many values.
struct FiniteCheck {
  I top = {};
  LPSGD_INLINE void see(const F* v) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) top = greater(top, Lanes::bits(v[k]) & magnitude_mask);
  }
  LPSGD_INLINE bool finite() const { return largest(top) < infinity_bits; }
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

/// A block of codes, of which `left` exist.
template <class Code>
LPSGD_INLINE void load_floats(const std::byte* in, std::int64_t left, Code* codes) {
  if (left >= kBlock) [[likely]]
    std::memcpy(codes, in, kBlock * sizeof(Code));
  else
    pad(in, left * static_cast<std::int64_t>(sizeof(Code)), codes, kBlock * sizeof(Code));
}

/// Encodes a block of which `left` values exist; with `residuals` what is lost becomes the residual.
template <class T, bool residuals>
LPSGD_INLINE void float_encode_block(F* v, float* residual, std::int64_t left, FiniteCheck& check,
                                     std::byte* out) {
  using Code = typename T::Code;
  check.see(v);
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

template <class T, bool residuals>
bool float_encode_values(const float* values, float* residual, std::int64_t n, std::byte* out) {
  FiniteCheck check;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), n - at, v);
    float_encode_block<T, residuals>(v, advanced(residual, at), n - at, check,
                                     out + at * static_cast<std::int64_t>(sizeof(typename T::Code)));
  }
  return check.finite();
}

template <class T>
bool float_encode(const CodecSpec&, const std::byte*, const float* values, float* residual, std::int64_t n,
                  std::int64_t, std::int64_t, const CodingContext&, std::byte* out) {
  return residual ? float_encode_values<T, true>(values, residual, n, out)
                  : float_encode_values<T, false>(values, nullptr, n, out);
}

template <class T, bool adds>
bool float_decode_values(const std::byte* in, std::int64_t n, float* out) {
  using Code = typename T::Code;
  FiniteCheck check;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    Code codes[kBlock];
    load_floats(in + at * static_cast<std::int64_t>(sizeof(Code)), n - at, codes);
    F v[kVectors];
    T::decode(codes, v);
    check.see(v);
    store_block<adds>(out + at, n - at, v);
  }
  return check.finite();
}

template <class T>
bool float_decode(const CodecSpec&, const std::byte*, const std::byte* in, std::int64_t n, std::int64_t,
                  bool adds, float* out) {
  return adds ? float_decode_values<T, true>(in, n, out) : float_decode_values<T, false>(in, n, out);
}

/// The owner's step: the mean of a block stays in registers.
template <class T, bool residuals>
bool float_reduce_values(const std::byte* const* contributions, std::size_t ranks, float* residual,
                         std::int64_t n, std::byte* out) {
  using Code = typename T::Code;
  const float weight = 1.0f / static_cast<float>(ranks);
  FiniteCheck check;
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t byte = at * static_cast<std::int64_t>(sizeof(Code));
    F v[kVectors] = {};
    for (std::size_t r = 0; r < ranks; ++r) {
      Code codes[kBlock];
      load_floats(contributions[r] + byte, n - at, codes);
      F q[kVectors];
      T::decode(codes, q);
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = r == 0 ? q[k] : add<Lanes>(v[k], q[k]);
    }
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] *= weight;
    if constexpr (residuals) add_block(residual + at, n - at, v);
    float_encode_block<T, residuals>(v, advanced(residual, at), n - at, check, out + byte);
  }
  return check.finite();
}

template <class T>
bool float_reduce(const CodecSpec&, const std::byte* const* contributions, std::size_t ranks, float* residual,
                  std::int64_t n, std::int64_t, std::int64_t, const CodingContext&, float*, std::byte* out) {
  return residual ? float_reduce_values<T, true>(contributions, ranks, residual, n, out)
                  : float_reduce_values<T, false>(contributions, ranks, nullptr, n, out);
}

template <class T>
CodecKernels float_kernels() {
  return {.encode = float_encode<T>, .decode = float_decode<T>, .reduce = float_reduce<T>};
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
  row.record_bytes = [](const CodecSpec&, std::int64_t m) { return 4 * m; };
  return row;
}
CodecRow fp16_row() {
  CodecRow row;
  row.bucketed = false;
  row.record_bytes = [](const CodecSpec&, std::int64_t m) { return 2 * m; };
  return row;
}
CodecRow bf16_row() {
  return fp16_row();
}

}  // namespace lpsgd
#endif
