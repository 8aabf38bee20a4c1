// Kernels of codecs that are a rule (quant/scaled_rule_device.h). A rule that reads a table has the
// constructor Rule(options, table, encoding): the batch's unpacked table or nullptr, and the encoding to
// decode or nullptr.
//
// One kernel scans and codes a bucket of one piece; small buckets stay in registers, others are read again
// from cache. Larger buckets need three kernels: scan the pieces, combine the scans of each bucket, code the
// pieces. Internal to quant.
//
// Memory moved per value with codes of b bits and buckets of m values, all in 16 bytes where addresses allow:
//   encode   4 + b/8 + 4/m bytes; 8 more with a residual; buckets over 512 values read their 4 again, from
//   the
//            L2 cache up to 4096 values, from memory above
//   reduce   (ranks + 1)(b/8 + 4/m), 8 more with a residual; buckets over 512 decode the contributions twice
//   decode   4 + b/8 + 4/m, adding to the old values 8 + b/8 + 4/m
#pragma once

#include "quant/cuda/scan_device.h"

namespace lpsgd::cuda {
namespace {

// ---- Coding

/// One lane's part of a bucket: its rule and its code words.
template <class Rule>
class Encoder {
 public:
  __device__ Encoder(const LaunchFor<Rule>& launch, const Extent& extent, Scales scales, float* tile)
      : launch_(launch),
        extent_(extent),
        finite_(are_finite(scales)),
        rule_(make_rule<Rule>(launch, extent.job, nullptr)),
        tile_(reinterpret_cast<std::uint32_t*>(tile)) {
    const Job& job = extent.job;
    if constexpr (Rule::dithered) step_ = launch.step_at != nullptr ? *launch.step_at : launch.context.step;
    const int scale_count = count_scales<Rule>(launch);
    std::byte* record = job.bytes + Rule::table_bytes + extent.record;
    words_ = record + 4 * scale_count;
    word_count_ = extent.m > 0 ? code_words(extent.m, Rule::bits) : 0;
    if (extent.m > 0 && extent.from == 0 && extent.lane() == 0) {
      if (scale_count > 0) store_float(record, finite_ ? scales.a : canonical_nan());
      if (scale_count > 1) store_float(record + 4, finite_ ? scales.b : canonical_nan());
      if (!finite_) *job.non_finite = 1;
    }
    start(rule_, scales);
  }

  /// Codes the lane's eight values, from value `in_bucket` of the bucket, of which `left` exist. All lanes
  /// call it.
  __device__ __forceinline__ void code(float* v, std::int64_t in_bucket, std::int64_t left) {
    const Job& job = extent_.job;
    Philox4x32 draws{};
    if constexpr (Rule::dithered)
      draws = philox4x32(static_cast<std::uint32_t>((job.first + extent_.begin + in_bucket) / kEach),
                         job.tensor, step_, 2 * launch_.context.rank + launch_.context.round - 1,
                         launch_.context.seed, static_cast<std::uint32_t>(RandomUse::codec));
    std::int32_t codes[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const auto half = static_cast<std::int32_t>(k % 2 ? draws.x[k / 2] >> 16 : draws.x[k / 2] & 0xffffu);
      codes[k] = finite_ && k < left ? rule_.code(v[k], half) : 0;
    }
    if (job.residual != nullptr) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] = finite_ ? v[k] - rule_.value(codes[k]) : canonical_nan();
    }
    store_codes<Rule::bits>(words_, word_count_, in_bucket, extent_.width, codes, tile_);
    if (job.residual != nullptr && left > 0) store_values(job.residual + extent_.begin + in_bucket, left, v);
  }

 private:
  const LaunchFor<Rule>& launch_;
  const Extent& extent_;
  const bool finite_;
  Rule rule_;
  std::uint32_t step_ = 0;
  std::uint32_t* tile_;
  std::byte* words_ = nullptr;
  std::int64_t word_count_ = 0;
};

/// A table before the job's records, by the warp that has its first bucket.
template <class Rule>
__device__ void write_table(const LaunchFor<Rule>& launch, const Extent& extent) {
  if (Rule::table_bytes == 0 || extent.job.n == 0 || extent.from > 0) return;
  const bool first = extent.begin == 0 && extent.from == 0 && lane_number() < extent.width;
  if (__ballot_sync(kAll, first) == 0) return;
  for (int i = lane_number(); i < Rule::table_bytes; i += kWarp)
    extent.job.bytes[i] = static_cast<std::byte>(launch.tables[extent.job.table_number].bytes[i]);
}

/// Calls body(extent, offset in the piece) for every tile of the piece; all lanes the same number of times.
template <class Body>
__device__ __forceinline__ void each_tile(const Extent& extent, Body body) {
  const std::int64_t step = extent.width * kEach;
  for (std::int64_t at = 0; at < extent.trip; at += step) body(at + extent.lane() * kEach);
}

/// Codes a piece with its bucket's scales; reads the source a second time.
template <class Rule, Source source>
__device__ __forceinline__ void code_piece(const LaunchFor<Rule>& launch, const Extent& extent, Scales scales,
                                           float* tile) {
  Encoder<Rule> encoder(launch, extent, scales, tile);
  each_tile(extent, [&](std::int64_t at) {
    float v[kEach];
    load_source<Rule, source>(launch, extent, extent.from + at, extent.count - at, v);
    encoder.code(v, extent.from + at, extent.count - at);
  });
}

template <class Rule, Source source>
__device__ __forceinline__ PieceScan scan_piece(const LaunchFor<Rule>& launch, const Extent& extent,
                                                float* tile) {
  Scanner<Rule> scanner(scale_by<Rule>(launch.options), extent.width, tile);
  each_tile(extent, [&](std::int64_t at) {
    float v[kEach];
    load_source<Rule, source>(launch, extent, extent.from + at, extent.count - at, v);
    scanner.add(v, extent.count - at);
  });
  return scanner.finish();
}

constexpr int kept_tiles = 2;  // in registers: enough for the paper's buckets

/// A piece of whole buckets of at most kept_tiles: reads the source once.
template <class Rule, Source source>
__device__ __forceinline__ void encode_kept(const LaunchFor<Rule>& launch, const Extent& extent,
                                            float* tile) {
  float v[kept_tiles][kEach];
  const std::int64_t mine = extent.lane() * kEach;
  Scanner<Rule> scanner(scale_by<Rule>(launch.options), extent.width, tile);
#pragma unroll
  for (int t = 0; t < kept_tiles; ++t) {
    const std::int64_t at = t * kTile + mine;
    if (t * kTile >= extent.trip) continue;
    load_source<Rule, source>(launch, extent, at, extent.count - at, v[t]);
    scanner.add(v[t], extent.count - at);
  }
  const PieceScan scan = scanner.finish();
  Encoder<Rule> encoder(launch, extent, scales_of<Rule>(launch, scan, scan.positive, extent.m), tile);
#pragma unroll
  for (int t = 0; t < kept_tiles; ++t) {
    const std::int64_t at = t * kTile + mine;
    if (t * kTile < extent.trip) encoder.code(v[t], at, extent.count - at);
  }
}

// ---- Kernels

enum class Phase { scan, combine, code };

/// Phases scan and combine process only buckets larger than a piece.
template <class Rule, Phase phase, Source source>
__global__ void __launch_bounds__(kThreads) encode_kernel(LaunchFor<Rule> launch) {
  __shared__ __align__(16) float tiles[kWarps][kTile];
  float* tile = tiles[threadIdx.x / kWarp];
  if constexpr (phase == Phase::combine) {
    each_warp(launch.bucket_first, launch.buckets, [&](std::int64_t b) {
      const std::int32_t j = find_job(launch, b, [](const Job& job) { return job.buckets_before; });
      const Job& job = launch.jobs[j];
      if (job.bucket <= piece_values) return;
      const std::int64_t bucket = b - job.buckets_before;
      const std::int64_t m = min_of(job.bucket, job.n - bucket * job.bucket);
      const std::int64_t each = (job.bucket + piece_values - 1) / piece_values;
      std::int64_t positive = 0;
      const PieceScan scan = combine(launch.scans + job.pieces_before + bucket * each,
                                     (m + piece_values - 1) / piece_values, &positive);
      const Scales s = scales_of<Rule>(launch, scan, positive, m);
      if (lane_number() == 0) launch.scales[b] = s;
    });
  } else {
    each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
      const Extent extent = find_piece<Rule>(launch, piece);
      if constexpr (phase == Phase::scan) {
        if (extent.whole()) return;
        const PieceScan scan = scan_piece<Rule, source>(launch, extent, tile);
        if (lane_number() == 0) launch.scans[piece] = scan;
      } else {
        write_table<Rule>(launch, extent);
        if (extent.whole() && extent.trip <= kept_tiles * kTile)
          return encode_kept<Rule, source>(launch, extent, tile);
        Scales scales{};
        if (extent.whole()) {
          const PieceScan scan = scan_piece<Rule, source>(launch, extent, tile);
          scales = scales_of<Rule>(launch, scan, scan.positive, extent.m);
        } else {
          scales = launch.scales[extent.bucket_number];
        }
        code_piece<Rule, source>(launch, extent, scales, tile);
      }
    });
  }
}

/// What encode lost, for jobs with an error sum: the error is the new residual, or else the source less
/// its decoded codes. A run measures this rarely, so the source is read again.
template <class Rule, Source source>
__global__ void __launch_bounds__(kThreads) error_kernel(LaunchFor<Rule> launch) {
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Extent extent = find_piece<Rule>(launch, piece);
    const Job& job = extent.job;
    if (job.error == nullptr) return;
    const std::byte* record = job.bytes + Rule::table_bytes + extent.record;
    Rule rule = make_rule<Rule>(launch, job, nullptr);
    bool finite = false;
    if (extent.count > 0) {
      const Scales s = read_scales<Rule>(launch, record);
      finite = are_finite(s);
      start(rule, s);
    }
    double own = 0, lost = 0;
    each_tile(extent, [&](std::int64_t at) {
      const std::int64_t in_bucket = extent.from + at, left = extent.count - at;
      if (left <= 0) return;
      float v[kEach], values[kEach] = {};
      if constexpr (source == Source::own) load_values(job.values + extent.begin + in_bucket, left, values);
      if (job.residual != nullptr) {
        load_values(job.residual + extent.begin + in_bucket, left, v);
      } else {
        std::int32_t codes[kEach];
        load_source<Rule, source>(launch, extent, in_bucket, left, v);
        load_codes<Rule::bits>(record + 4 * count_scales<Rule>(launch), code_words(extent.m, Rule::bits),
                               in_bucket, codes);
        for (int k = 0; k < kEach; ++k) v[k] = finite ? v[k] - rule.value(codes[k]) : canonical_nan();
      }
      for (int k = 0; k < kEach && k < left; ++k) {
        own += static_cast<double>(values[k]) * static_cast<double>(values[k]);
        lost += static_cast<double>(v[k]) * static_cast<double>(v[k]);
      }
    });
    add_error(job.error, own, lost);
  });
}

template <class Rule, bool adds>
__global__ void __launch_bounds__(kThreads) decode_kernel(LaunchFor<Rule> launch) {
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Extent extent = find_piece<Rule>(launch, piece);
    if (extent.count <= 0) return;
    const std::byte* record = extent.job.bytes + Rule::table_bytes + extent.record;
    const Scales s = read_scales<Rule>(launch, record);
    const bool finite = are_finite(s);
    if (!finite && extent.lane() == 0) *extent.job.non_finite = 1;
    Rule rule = make_rule<Rule>(launch, extent.job, extent.job.bytes);
    start(rule, s);
    const std::int64_t words = code_words(extent.m, Rule::bits);
    each_tile(extent, [&](std::int64_t at) {
      const std::int64_t in_bucket = extent.from + at, left = extent.count - at;
      if (left <= 0) return;
      std::int32_t codes[kEach];
      load_codes<Rule::bits>(record + 4 * count_scales<Rule>(launch), words, in_bucket, codes);
      float* to = extent.job.out + extent.begin + in_bucket;
      float v[kEach];
      if constexpr (adds) load_values(to, left, v);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const float q = finite ? rule.value(codes[k]) : canonical_nan();
        v[k] = adds ? add<ScalarLanes>(v[k], q) : q;
      }
      store_values(to, left, v);
    });
  });
}

// ---- Launches

template <class Rule, Source source>
void scan_buckets(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  const auto scan = encode_kernel<Rule, Phase::scan, source>;
  const auto combine_scans = encode_kernel<Rule, Phase::combine, source>;
  LPSGD_LAUNCH(scan, blocks_for(launch.pieces), kThreads, stream)(launch);
  LPSGD_LAUNCH(combine_scans, blocks_for(launch.buckets), kThreads, stream)(launch);
}

template <class Rule, Source source>
void encode_from(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  if (launch.large) scan_buckets<Rule, source>(launch, stream);
  const auto code = encode_kernel<Rule, Phase::code, source>;
  LPSGD_LAUNCH(code, blocks_for(launch.pieces), kThreads, stream)(launch);
  const auto measure = error_kernel<Rule, source>;
  if (launch.errors) LPSGD_LAUNCH(measure, blocks_for(launch.pieces), kThreads, stream)(launch);
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
  CodecKernels kernels{.encode = encode_scaled<Rule>, .decode = decode_scaled<Rule>};
  if constexpr (!std::is_void_v<typename Rule::Constants>)
    kernels.constants = [](const CodecOptions& options) {
      const auto& constants = Rule::constants(options_of<typename Rule::Options>(options));
      return std::as_bytes(std::span(&constants, 1));
    };
  return kernels;
}

}  // namespace
}  // namespace lpsgd::cuda
