// QSGD (Alistarh et al. 2017, section 3; EDBT 2018, section 2.3): stochastic rounding of v/norm to
// 2^(bits-1)-1 levels above zero and a sign. Record: norm, then the codes.
#pragma once

#include "quant/cpu_codes_inl.h"
#include "quant/cpu_dither_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

constexpr std::int64_t kQsgdScales = 1;

struct QsgdScan {
  std::int32_t largest = 0;  // bits of the largest magnitude; not below infinity_bits: not finite
  float squares = 0;
};

/// m values, at most one block of the sum.
template <bool residuals, bool l2>
LPSGD_INLINE QsgdScan qsgd_scan_block(const float* values, const float* residual, std::int64_t m) {
  I top[kRow] = {};
  F squares[kRow] = {};
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      top[k % kRow] = greater(top[k % kRow], Lanes::bits(v[k]) & magnitude_mask);
      if constexpr (l2) squares[k % kRow] = fused_multiply_add(v[k], v[k], squares[k % kRow]);
    }
  }
  for (int k = 1; k < kRow; ++k) top[0] = greater(top[0], top[k]);
  return {largest(top[0]), l2 ? fold(squares) : 0.0f};
}

template <bool residuals, bool l2>
[[gnu::noinline]] QsgdScan qsgd_scan(const float* values, const float* residual, std::int64_t m) {
  constexpr std::int64_t block = FixedOrderSum::block;
  if (m <= block) return qsgd_scan_block<residuals, l2>(values, residual, m);
  QsgdScan scan;
  FixedOrderSum squares;
  for (std::int64_t at = 0; at < m; at += block) {
    const QsgdScan part =
        qsgd_scan_block<residuals, l2>(values + at, advanced(residual, at), m - at < block ? m - at : block);
    if (part.largest > scan.largest) scan.largest = part.largest;
    squares.add(part.squares);
  }
  scan.squares = squares.total();
  return scan;
}

/// The bucket's scale: the largest magnitude, or the 2-norm where it is larger and finite.
LPSGD_INLINE float qsgd_norm(const QsgdScan& scan) {
  const float top = ScalarLanes::value(scan.largest);
  const float root = is_finite(scan.squares) ? __builtin_sqrtf(scan.squares) : 0.0f;
  return root > top ? root : top;
}

template <int bits, bool residuals>
[[gnu::noinline]] void qsgd_codes(const float* values, float* residual, std::int64_t m, float norm,
                                  DitherStream& dither, std::byte* words) {
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    const std::uint16_t* halves = dither.block();
    I codes[kVectors];
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) codes[k] =
        qsgd_code<Lanes>(v[k], norm, load_halves(halves + k * kLanes), bits);
    store_codes<bits>(codes, words + at * bits / 8, m - at);
    if constexpr (residuals) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] -= qsgd_value<Lanes>(codes[k], norm, bits);
      store_block<false>(residual + at, m - at, v);
    }
  }
}

using QsgdScanner = QsgdScan (*)(const float*, const float*, std::int64_t);
using QsgdCoder = void (*)(const float*, float*, std::int64_t, float, DitherStream&, std::byte*);

template <bool residuals>
QsgdCoder qsgd_coder(std::int64_t bits) {
  return bits == 2   ? qsgd_codes<2, residuals>
         : bits == 4 ? qsgd_codes<4, residuals>
         : bits == 8 ? qsgd_codes<8, residuals>
                     : qsgd_codes<16, residuals>;
}

bool qsgd_encode(const CodecSpec& spec, const float* values, float* residual, std::int64_t n,
                 std::int64_t first, std::int64_t bucket, const CodingContext& context, std::byte* out) {
  const bool l2 = spec.norm == CodecSpec::Norm::l2;
  const QsgdScanner scan_bucket = residual ? (l2 ? qsgd_scan<true, true> : qsgd_scan<true, false>)
                                           : (l2 ? qsgd_scan<false, true> : qsgd_scan<false, false>);
  const QsgdCoder code_bucket = residual ? qsgd_coder<true>(spec.bits) : qsgd_coder<false>(spec.bits);
  DitherStream dither(context);
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    float* r = advanced(residual, begin);
    const QsgdScan scan = scan_bucket(values + begin, r, m);
    if (scan.largest >= infinity_bits) [[unlikely]] {
      write_poisoned(out, kQsgdScales, spec.bits, r, m);
      finite = false;
    } else {
      const float norm = qsgd_norm(scan);
      store(out, norm);
      dither.seek(first + begin);
      code_bucket(values + begin, r, m, qsgd_divisor(norm), dither, out + 4);
    }
    out += record_bytes(m, kQsgdScales, spec.bits);
  }
  return finite;
}

template <int bits, bool adds>
bool qsgd_decode_buckets(const std::byte* in, std::int64_t n, std::int64_t bucket, float* out) {
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    const float norm = load<float>(in);
    if (is_finite(norm)) [[likely]] {
      for (std::int64_t at = 0; at < m; at += kBlock) {
        I codes[kVectors];
        load_codes<bits>(in + 4 + at * bits / 8, m - at, codes);
        F v[kVectors];
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = qsgd_value<Lanes>(codes[k], norm, bits);
        store_block<adds>(out + begin + at, m - at, v);
      }
    } else {
      decode_poisoned(out + begin, m);
      finite = false;
    }
    in += record_bytes(m, kQsgdScales, bits);
  }
  return finite;
}

template <bool adds>
bool qsgd_decode_bits(std::int64_t bits, const std::byte* in, std::int64_t n, std::int64_t bucket,
                      float* out) {
  return bits == 2   ? qsgd_decode_buckets<2, adds>(in, n, bucket, out)
         : bits == 4 ? qsgd_decode_buckets<4, adds>(in, n, bucket, out)
         : bits == 8 ? qsgd_decode_buckets<8, adds>(in, n, bucket, out)
                     : qsgd_decode_buckets<16, adds>(in, n, bucket, out);
}

bool qsgd_decode(const CodecSpec& spec, const std::byte* in, std::int64_t n, std::int64_t bucket, bool adds,
                 float* out) {
  return adds ? qsgd_decode_bits<true>(spec.bits, in, n, bucket, out)
              : qsgd_decode_bits<false>(spec.bits, in, n, bucket, out);
}

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
