// Kernels of codecs that are a rule (quant/scaled_rule_device.h). A rule that reads a table has the
// constructor Rule(options, table, encoding): the batch's unpacked table or nullptr, and the encoding to
// decode or nullptr. Internal to quant.
//
// Memory moved per value with codes of b bits and buckets of m values. Values are loaded and stored 16 bytes
// at a time where addresses allow, codes 4 bytes; the lanes of a warp have words beside each other. (onebit
// has 8/m where this says 4/m: two scales.)
//   encode   4 + b/8 + 4/m bytes; 8 more with a residual; buckets over 8192 values read again what they code,
//            4 bytes, 8 with a residual
//   reduce   (ranks + 1)(b/8 + 4/m), 8 more with a residual; buckets over 8192 read the contributions and the
//            residual twice
//   decode   4 + b/8 + 4/m, adding to the old values 8 + b/8 + 4/m
// Launches: one for the buckets of up to 512 values, one for those of up to 8192, two for larger ones; decode
// one. Most batches have one of these kinds alone.
#pragma once

#include "quant/cuda/encode_device.h"

namespace lpsgd::cuda {
namespace {

/// What encode lost, for jobs with an error sum: the error is the new residual, or else the source less
/// its decoded codes. A run measures this rarely, so the source is read again.
template <class Rule, Source source>
__global__ void __launch_bounds__(kThreads) error_kernel(LaunchFor<Rule> launch) {
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Extent extent = find_piece<Rule>(launch, piece);
    const Job& job = extent.job;
    if (job.error == nullptr) return;
    const Words record(job.bytes + Rule::table_bytes + extent.record);
    Rule rule = make_rule<Rule>(launch, job, nullptr);
    bool finite = false;
    if (extent.count > 0) {
      const Scales s = read_scales<Rule>(launch, record);
      finite = are_finite(s);
      start(rule, s);
    }
    double own = 0, lost = 0;
    each_tile(extent, [&](int at) {
      const int left = extent.count - at;
      float v[1][kEach], values[kEach] = {};
      if constexpr (source == Source::own) load_values(job.values + extent.first() + at, left, values);
      if (job.residual != nullptr) {
        load_values(job.residual + extent.first() + at, left, v[0]);
      } else {
        CodeWords<Rule::bits> codes;
        load_source<Rule, source, 1>(launch, extent, at, v);
        codes.load(record.from(codes_at<Rule>(launch, extent)), word_count<Rule>(extent), at);
        for (int k = 0; k < kEach; ++k)
          v[0][k] = finite ? v[0][k] - rule.value(codes.code(k)) : canonical_nan();
      }
      add_squares(values, v[0], left, own, lost);
    });
    add_error(job.error, own, lost);
  });
}

template <class Rule, bool adds>
__global__ void __launch_bounds__(kThreads) decode_kernel(LaunchFor<Rule> launch) {
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Extent extent = find_piece<Rule>(launch, piece);
    if (extent.count <= 0) return;
    const Words record(extent.job.bytes + Rule::table_bytes + extent.record);
    const Scales s = read_scales<Rule>(launch, record);
    const bool finite = are_finite(s);
    if (!finite && extent.lane() == 0) *extent.job.non_finite = 1;
    Rule rule = make_rule<Rule>(launch, extent.job, extent.job.bytes);
    start(rule, s);
    const Words words = record.from(codes_at<Rule>(launch, extent));
    each_tile(extent, [&](int at) {
      const int left = extent.count - at;
      if (left <= 0) return;
      CodeWords<Rule::bits> codes;
      codes.load(words, word_count<Rule>(extent), at);
      float* to = extent.job.out + extent.first() + at;
      float v[kEach];
      if constexpr (adds) load_values(to, left, v);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const float q = finite ? rule.value(codes.code(k)) : canonical_nan();
        v[k] = adds ? add<ScalarLanes>(v[k], q) : q;
      }
      store_values(to, left, v);
    });
  });
}

// ---- Launches

/// After scan_large().
template <class Rule, Source source>
void encode_scanned(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  use_buckets<Rule, source, Encodes<Rule>>(launch, stream);
  const auto measure = error_kernel<Rule, source>;
  if (launch.errors) LPSGD_LAUNCH(measure, blocks_for(launch.pieces), kThreads, stream)(launch);
}

template <class Rule, Source source>
void encode_from(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  scan_large<Rule, source>(launch, stream);
  encode_scanned<Rule, source>(launch, stream);
}

template <class Rule>
void encode_scaled(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  if (launch.pieces == 0) return;
  const LaunchFor<Rule> own{launch, options_of<typename Rule::Options>(options)};
  (launch.ranks > 0 ? encode_from<Rule, Source::mean> : encode_from<Rule, Source::own>)(own, stream);
}

template <class Rule>
void decode_scaled(const Launch& launch, const CodecOptions& options, bool adds, cudaStream_t stream) {
  if (launch.pieces == 0) return;
  const LaunchFor<Rule> own{launch, options_of<typename Rule::Options>(options)};
  const auto kernel = adds ? decode_kernel<Rule, true> : decode_kernel<Rule, false>;
  LPSGD_LAUNCH(kernel, blocks_for(launch.pieces), kThreads, stream)(own);
}

/// The kernels of a rule.
template <template <class> class RuleOf>
CodecKernels scaled_kernels() {
  using Rule = RuleOf<ScalarLanes>;
  CodecKernels kernels{
      .encode = encode_scaled<Rule>, .decode = decode_scaled<Rule>, .whole_bucket = whole_bucket<Rule>};
  if constexpr (!std::is_void_v<typename Rule::Constants>)
    kernels.constants = [](const CodecOptions& options) {
      const auto& constants = Rule::constants(options_of<typename Rule::Options>(options));
      return std::as_bytes(std::span(&constants, 1));
    };
  return kernels;
}

}  // namespace
}  // namespace lpsgd::cuda
