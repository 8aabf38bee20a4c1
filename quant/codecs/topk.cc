// The largest magnitudes alone, with error feedback (Aji & Heafield 2017; Stich et al. 2018, section 2).
// Record of a bucket: the kept values' places in the bucket, ascending, then the values.
#include "quant/codecs/topk_device.h"
#include "quant/cpu_simd_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// The magnitudes' order: bits as an integer; every NaN alike, above infinity.
LPSGD_INLINE I order_of(F v) {
  return Lanes::bits(canonical<Lanes>(v)) & magnitude_mask;
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
      load_block<residuals>(values + at, advanced(residual, at), m - at, v);
      std::int32_t keys[kBlock];
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) store(keys + k * kLanes, order_of(v[k]));
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

template <bool residuals>
bool encode_bucket(const float* values, float* residual, std::int64_t m, std::int64_t kept, std::byte* out) {
  Threshold threshold = find_threshold<residuals>(values, residual, m, kept);
  std::byte* places = out;
  std::byte* chosen = out + 4 * kept;
  std::int32_t top = 0;
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    float block[kBlock];
    std::int32_t keys[kBlock];
    I candidates = {};
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      const I key = order_of(v[k]);
      store(block + k * kLanes, v[k]);
      store(keys + k * kLanes, key);
      candidates |= key >= threshold.key;
    }
    const std::int64_t left = m - at < kBlock ? m - at : kBlock;
    if (largest(candidates & 1) != 0) {
      for (std::int64_t i = 0; i < left; ++i) {
        if (keys[i] < threshold.key || (keys[i] == threshold.key && threshold.ties-- <= 0)) continue;
        const float value = canonical<ScalarLanes>(block[i]);
        store(places, static_cast<std::uint32_t>(at + i));
        store(chosen, value);
        places += 4;
        chosen += 4;
        top = keys[i] > top ? keys[i] : top;
        block[i] = canonical<ScalarLanes>(block[i] - (value + 0.0f));
      }
    }
    if constexpr (residuals) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = canonical<Lanes>(load<F>(block + k * kLanes));
      store_block<false>(residual + at, m - at, v);
    }
  }
  return top < infinity_bits;
}

bool encode(const CodecSpec& spec, const std::byte*, const float* values, float* residual, std::int64_t n,
            std::int64_t, std::int64_t bucket, const CodingContext&, std::byte* out) {
  const double density = spec.options.get<TopkOptions>().density;
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    const std::int64_t kept = topk_kept(density, m);
    finite &= residual ? encode_bucket<true>(values + begin, residual + begin, m, kept, out)
                       : encode_bucket<false>(values + begin, nullptr, m, kept, out);
    out += 8 * kept;
  }
  return finite;
}

/// Adding touches the kept values only. A place outside the bucket is passed over; values of
/// one place add up.
bool decode(const CodecSpec& spec, const std::byte*, const std::byte* in, std::int64_t n, std::int64_t bucket,
            bool adds, float* out) {
  const double density = spec.options.get<TopkOptions>().density;
  if (!adds) std::memset(out, 0, static_cast<std::size_t>(n) * sizeof(float));
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    const std::int64_t kept = topk_kept(density, m);
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t place = load<std::uint32_t>(in + 4 * i);
      if (place >= m) continue;
      const float value = load<float>(in + 4 * (kept + i));
      float& to = out[begin + place];
      to = lpsgd::add<ScalarLanes>(to, value);
      finite &= is_finite(adds ? value : to);
    }
    in += 8 * kept;
  }
  return finite;
}

}  // namespace

CodecKernels topk_kernels() {
  return {.encode = encode, .decode = decode};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow topk_row() {
  CodecRow row;
  row.error_feedback = true;
  row.bucket = 4096;
  row.defaults = CodecOptions::of(TopkOptions{});
  row.options = [](config::Visitor& v, CodecSpec& spec) {
    auto o = spec.options.get<TopkOptions>();
    v.field("density", o.density, "the part of each bucket's values that travels",
            config::Range{.min = 0, .max = 1, .min_open = true});
    spec.options.set(o);
  };
  row.record_bytes = [](const CodecSpec& spec, std::int64_t m) {
    return 8 * topk_kept(spec.options.get<TopkOptions>().density, m);
  };
  return row;
}

}  // namespace lpsgd
#endif
