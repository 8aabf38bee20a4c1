// Encode, decode and reduce on the CPU for codecs that are a rule (quant/scaled_rule_device.h). Record: the
// scale, if there is one, then the codes.
#pragma once

#include "quant/cpu_codes_inl.h"
#include "quant/cpu_dither_inl.h"
#include "quant/scaled_rule_device.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// The scan of at most one block of the fixed-order sum, in vectors.
template <Scale scale>
struct VectorScan {
  I top[kRow] = {};
  F sums[kRow] = {};
  LPSGD_INLINE void add(const F* v) {
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      top[k % kRow] = max(top[k % kRow], Lanes::bits(v[k]) & magnitude_mask);
      if constexpr (scale == Scale::norm) sums[k % kRow] = Lanes::fma(v[k], v[k], sums[k % kRow]);
      if constexpr (scale == Scale::mean) sums[k % kRow] += magnitude<Lanes>(v[k]);
    }
  }
  LPSGD_INLINE BucketScan result() {
    for (int k = 1; k < kRow; ++k) top[0] = max(top[0], top[k]);
    return {max_of(top[0]), scale == Scale::norm || scale == Scale::mean ? fold(sums) : 0.0f};
  }
};

/// The scan of m values, combined from scan(at, count) of each block of the fixed-order sum.
template <class Scan>
LPSGD_INLINE BucketScan scan_blocks(std::int64_t m, Scan scan) {
  if (m <= FixedOrderSum::block) return scan(0, m);
  BucketScan all;
  const auto block = [&](std::int64_t at, std::int64_t count, float* sum) {
    const BucketScan part = scan(at, count);
    if (part.max > all.max) all.max = part.max;
    *sum = part.sum;
  };
  sum_blocks<1>(0, m, block, &all.sum);
  return all;
}

template <bool residuals, Scale scale>
[[gnu::noinline]] BucketScan scan_bucket(const float* values, const float* residual, std::int64_t m) {
  return scan_blocks(m, [&](std::int64_t from, std::int64_t count) LPSGD_CALLED {
    VectorScan<scale> scan;
    const float* block = values + from;
    const float* r = advanced(residual, from);
    for (std::int64_t at = 0; at < count; at += kBlock) {
      F v[kVectors];
      load_new_block<residuals>(block + at, advanced(r, at), count - at, v);
      scan.add(v);
    }
    return scan.result();
  });
}

using Scanner = BucketScan (*)(const float*, const float*, std::int64_t);

inline Scanner scanner(Scale scale, bool residuals) {
  constexpr Scanner all[][2] = {{scan_bucket<false, Scale::max>, scan_bucket<true, Scale::max>},
                                {scan_bucket<false, Scale::norm>, scan_bucket<true, Scale::norm>},
                                {scan_bucket<false, Scale::mean>, scan_bucket<true, Scale::mean>}};
  return all[scale == Scale::norm ? 1 : scale == Scale::mean ? 2 : 0][residuals];
}

/// A rule that looks up values in registers, one lane a code, if its codes are few enough; or, of a rule with
/// a table of 128 magnitudes, in eight registers of them.
template <class Rule>
struct WithLookup : Rule {
#if defined(__AVX512F__)
  static constexpr bool has_lookup = Rule::bits <= 4;
  static constexpr bool has_magnitudes = requires(const Rule& rule) { rule.magnitudes(); };
#elif defined(__AVX2__)
  static constexpr bool has_lookup = Rule::bits <= 3;
  static constexpr bool has_magnitudes = false;
#else
  static constexpr bool has_lookup = false;
  static constexpr bool has_magnitudes = false;
#endif
  F values[has_magnitudes ? 128 / kLanes : 1] = {};
  LPSGD_INLINE explicit WithLookup(const Rule& rule) : Rule(rule) {}
  LPSGD_INLINE void start(float of_bucket) {
    Rule::start(of_bucket);
    if constexpr (has_lookup) values[0] = Rule::value(lane_numbers());
    if constexpr (has_magnitudes)
      for (int j = 0; j < 128 / kLanes; ++j) values[j] = of_bucket * load<F>(Rule::magnitudes() + j * kLanes);
  }
  LPSGD_INLINE F value(I code) const {
#if defined(__AVX512F__)
    const auto at = reinterpret_cast<Native>(code);
    if constexpr (has_lookup) return _mm512_permutexvar_ps(at, values[0]);
    if constexpr (has_magnitudes) {
      const auto of_32 = [&](int j) { return _mm512_permutex2var_ps(values[2 * j], at, values[2 * j + 1]); };
      const __mmask16 odd = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
      const __mmask16 upper = _mm512_test_epi32_mask(at, _mm512_set1_epi32(64));
      const F x = _mm512_mask_blend_ps(upper, _mm512_mask_blend_ps(odd, of_32(0), of_32(1)),
                                       _mm512_mask_blend_ps(odd, of_32(2), of_32(3)));
      return Lanes::value(Lanes::bits(x) ^ ((code & 128) << 24));
    }
#elif defined(__AVX2__)
    if constexpr (has_lookup) return _mm256_permutevar8x32_ps(values[0], reinterpret_cast<Native>(code));
#endif
    return Rule::value(code);
  }
};

/// What encoding does with the residual.
enum class Residual : std::uint8_t {
  none,
  added,         // values + residual is coded; the error becomes the residual
  plain_values,  // the values are coded as they are; the error becomes the residual
};

template <class Rule, Residual mode>
[[gnu::noinline]] void encode_codes(const Rule& rule, const float* values, float* residual, std::int64_t m,
                                    DitherStream& dither, std::byte* words) {
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<mode == Residual::added>(values + at, advanced(residual, at), m - at, v);
    const std::uint16_t* halves = nullptr;
    if constexpr (Rule::dithered) halves = dither.block();
    I codes[kVectors];
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) {
      I half = {};
      if constexpr (Rule::dithered) half = load_halves(halves + k * kLanes);
      codes[k] = rule.code(v[k], half);
    }
    store_codes<Rule::bits>(codes, words + at * Rule::bits / 8, m - at);
    if constexpr (mode != Residual::none) {
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] -= rule.value(codes[k]);
      store_block<false>(residual + at, m - at, v);
    }
  }
}

/// Writes the records of a job's buckets, one after the other.
template <class Rule>
class RecordWriter {
 public:
  LPSGD_INLINE RecordWriter(const Rule& rule, Scale scale, const CodingContext& context, const CodingJob& job,
                            Residual mode)
      : rule_(rule),
        dither_(context, job.tensor),
        encode_(job.residual == nullptr   ? encode_codes<WithLookup<Rule>, Residual::none>
                : mode == Residual::added ? encode_codes<WithLookup<Rule>, Residual::added>
                                          : encode_codes<WithLookup<Rule>, Residual::plain_values>),
        scales_(scale_count(scale)),
        first_(job.first),
        out_(job.bytes) {}

  /// The bucket of m values from `begin`, with scale s; s is non-finite if one of the values is. Returns
  /// whether s is finite.
  LPSGD_INLINE bool write(float s, const float* values, float* residual, std::int64_t begin, std::int64_t m) {
    std::byte* record = out_;
    out_ += record_bytes(m, scales_, Rule::bits);
    if (!is_finite(s)) [[unlikely]]
      return write_non_finite(record, scales_, Rule::bits, residual, m);
    if (scales_) store(record, s);
    rule_.start(s);
    if constexpr (Rule::dithered) dither_.seek(first_ + begin);
    encode_(rule_, values, residual, m, dither_, record + 4 * scales_);
    return true;
  }

 private:
  WithLookup<Rule> rule_;
  DitherStream dither_;
  void (*const encode_)(const WithLookup<Rule>&, const float*, float*, std::int64_t, DitherStream&,
                        std::byte*);
  const std::int64_t scales_, first_;
  std::byte* out_;
};

/// CodecKernels::encode.
template <class Rule>
bool scaled_encode(const Rule& rule, const CodecOptions& options, const CodingContext& context,
                   const CodingJob& job) {
  const Scale scale = scale_by<Rule>(options_of<typename Rule::Options>(options));
  const Scanner scan = scanner(scale, job.residual != nullptr);
  RecordWriter<Rule> writer(rule, scale, context, job, Residual::added);
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    float* r = advanced(job.residual, begin);
    const float* values = job.values + begin;
    return writer.write(scale_of(scale, scan(values, r, m), m), values, r, begin, m);
  });
}

template <class Rule, bool adds>
bool scaled_decode_buckets(const Rule& plain, std::int64_t scales, const CodingJob& job) {
  WithLookup<Rule> rule(plain);
  const std::byte* in = job.bytes;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    float* out = job.out + begin;
    const std::byte* codes_in = in + 4 * scales;
    const float s = scales ? load<float>(in) : 1.0f;
    in += record_bytes(m, scales, Rule::bits);
    if (!is_finite(s)) [[unlikely]]
      return decode_non_finite(out, m);
    rule.start(s);
    for (std::int64_t at = 0; at < m; at += kBlock) {
      I codes[kVectors];
      load_codes<Rule::bits>(codes_in + at * Rule::bits / 8, m - at, codes);
      F v[kVectors];
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) v[k] = rule.value(codes[k]);
      store_block<adds>(out + at, m - at, v);
    }
    return true;
  });
}

/// CodecKernels::decode.
template <class Rule>
bool scaled_decode(const Rule& rule, const CodecOptions& options, const CodingJob& job, bool adds) {
  const int scales = scale_count(scale_by<Rule>(options_of<typename Rule::Options>(options)));
  return (adds ? scaled_decode_buckets<Rule, true> : scaled_decode_buckets<Rule, false>)(rule, scales, job);
}

// ---- The owner's step: each bucket's mean and its scan are computed in registers; the mean stays in the L1
// cache until it is coded.

constexpr std::int32_t kMaxContributions = 8;  // contributions added in registers

/// One bucket's codes of up to kMaxContributions contributions.
template <class Rule>
struct Contributions {
  LPSGD_INLINE explicit Contributions(const WithLookup<Rule>& r) : rules{r, r, r, r, r, r, r, r} {}
  WithLookup<Rule> rules[kMaxContributions];
  const std::byte* words[kMaxContributions];
  std::int32_t count = 0;
};

/// Contributions are added at most kMaxContributions at a time, in turns.
struct Turn {
  bool is_first, is_last;
};

/// v = the sum over contributions of m values, plus the old v after the first turn. In the last turn it is
/// multiplied by the weight, the residual is added, and the result is scanned. With `is_only` the turn is
/// first and last, which the loops are compiled for.
template <class Rule, Scale scale, bool is_only>
[[gnu::noinline]] BucketScan mean_bucket(const Contributions<Rule>& in, Turn turn, std::int64_t m,
                                         float weight, const float* residual, float* v) {
  return scan_blocks(m, [&](std::int64_t from, std::int64_t count) LPSGD_CALLED {
    const bool is_first = is_only || turn.is_first, is_last = is_only || turn.is_last;
    const float w = weight;  // in registers, which what is captured is not
    const float* const added = residual;
    float* const mean = v;
    VectorScan<scale> scan;
    for (std::int64_t at = from; at < from + count; at += kBlock) {
      const std::int64_t left = from + count - at, byte = at * Rule::bits / 8;
      F sum[kVectors];
      I codes[kVectors];
      if (is_first) {
        load_codes<Rule::bits>(in.words[0] + byte, left, codes);
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] = in.rules[0].value(codes[k]);
      } else {
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] = load<F>(mean + at + k * kLanes);
      }
      for (std::int32_t r = is_first ? 1 : 0; r < in.count; ++r) {
        load_codes<Rule::bits>(in.words[r] + byte, left, codes);
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] += in.rules[r].value(codes[k]);
      }
      if (is_last) {
        LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) sum[k] *= w;
        if (added) add_new_block(added + at, left, sum);
        clear_after(left, sum);
        scan.add(sum);
      }
      LPSGD_UNROLL for (int k = 0; k < kVectors; ++k) store(mean + at + k * kLanes, sum[k]);
    }
    return scan.result();
  });
}

template <Scale scale, class Rule>
bool scaled_reduce_by(const Rule& rule, const CodingContext& context, const CodingJob& job, float* v) {
  constexpr std::int64_t scales = scale_count(scale);
  const float weight = 1.0f / static_cast<float>(job.ranks);
  Contributions<Rule> in{WithLookup<Rule>(rule)};
  RecordWriter<Rule> writer(rule, scale, context, job, Residual::plain_values);
  std::int64_t offset = 0;
  return each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    float* r = advanced(job.residual, begin);
    bool finite = true;
    BucketScan scan;
    for (std::int32_t done = 0; done < job.ranks; done += in.count) {
      in.count = job.ranks - done < kMaxContributions ? job.ranks - done : kMaxContributions;
      for (std::int32_t k = 0; k < in.count; ++k) {
        const std::byte* record = job.contributions[done + k] + offset;
        const float s = scales ? load<float>(record) : 1.0f;
        finite &= is_finite(s);
        in.rules[k].start(s);
        in.words[k] = record + 4 * scales;
      }
      const Turn turn = {done == 0, done + in.count == job.ranks};
      const auto mean =
          turn.is_first && turn.is_last ? mean_bucket<Rule, scale, true> : mean_bucket<Rule, scale, false>;
      scan = mean(in, turn, m, weight, r, v);
    }
    offset += record_bytes(m, scales, Rule::bits);
    return writer.write(finite ? scale_of(scale, scan, m) : canonical_nan(), v, r, begin, m);
  });
}

/// CodecKernels::reduce.
template <class Rule>
bool scaled_reduce(const Rule& rule, const CodecOptions& options, const CodingContext& context,
                   const CodingJob& job, float* scratch) {
  constexpr Scale first = Rule::scales[0], last = Rule::scales[std::size(Rule::scales) - 1];
  return scale_by<Rule>(options_of<typename Rule::Options>(options)) == first
             ? scaled_reduce_by<first>(rule, context, job, scratch)
             : scaled_reduce_by<last>(rule, context, job, scratch);
}

/// A rule from its options and constants.
template <class Rule>
LPSGD_INLINE Rule make_rule(const CodecOptions& options) {
  const auto& own = options_of<typename Rule::Options>(options);
  if constexpr (std::is_void_v<typename Rule::Constants>)
    return Rule(own);
  else
    return Rule(own, Rule::constants(own));
}

template <template <class> class RuleOf>
CodecKernels scaled_kernels() {
  using Rule = RuleOf<Lanes>;
  return {
      .encode =
          [](const CodecOptions& options, const CodingContext& context, const CodingJob& job) {
            return scaled_encode(make_rule<Rule>(options), options, context, job);
          },
      .decode = [](const CodecOptions& options, const CodingJob& job,
                   bool adds) { return scaled_decode(make_rule<Rule>(options), options, job, adds); },
      .reduce =
          [](const CodecOptions& options, const CodingContext& context, const CodingJob& job, float* mean) {
            return scaled_reduce(make_rule<Rule>(options), options, context, job, mean);
          }};
}

}  // namespace
}  // namespace lpsgd::LPSGD_ISA
