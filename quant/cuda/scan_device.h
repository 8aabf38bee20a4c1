// For codecs with bucket scales: the layout of values and codes, loading and storing them, and scanning
// buckets for their scales. Internal to quant.
#pragma once

#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

// ---- The rule (quant/scaled_rule_device.h) of a launch

template <class Rule>
using LaunchFor = LaunchOf<typename Rule::Options>;

template <class Rule>
__device__ int count_scales(const LaunchFor<Rule>& launch) {
  return scale_count(scale_by<Rule>(launch.options));
}

/// For decoding, the table is read from `encoding`; nullptr: the launch's table is used.
template <class Rule>
__device__ Rule make_rule(const LaunchFor<Rule>& launch, const Job& job, const std::byte* encoding) {
  if constexpr (std::is_constructible_v<Rule, typename Rule::Options, const LevelTable*, const std::byte*>)
    return Rule(launch.options, launch.tables ? &launch.tables[job.table_number].levels : nullptr, encoding);
  else if constexpr (std::is_void_v<typename Rule::Constants>)
    return Rule(launch.options);
  else
    return Rule(launch.options, *static_cast<const typename Rule::Constants*>(launch.constants));
}

template <class Rule>
__device__ __forceinline__ void start(Rule& rule, Scales scales) {
  if constexpr (Rule::scales[0] == Scale::sides)
    rule.start(scales.a, scales.b);
  else
    rule.start(scales.a);
}

// ---- Where a lane's values lie

struct Extent {
  Job job;
  std::int64_t bucket_number;  // of the batch
  std::int64_t begin, m;       // the bucket: its first value in the job, its length; m <= 0: none
  std::int64_t from, count;    // the piece: its first value in the bucket, its length
  std::int64_t record;         // where the bucket's record starts, after the table
  int width;                   // lanes that share the bucket; the first lane has its first value
  std::int64_t trip;           // values to loop over, the same for all lanes of the warp

  __device__ bool whole() const { return job.bucket <= piece_values; }
  __device__ int lane() const { return lane_number() & (width - 1); }
};

/// Piece `part` of a bucket. If buckets share a tile, this lane's bucket among those from `bucket` on.
template <class Rule>
__device__ Extent find_bucket(const LaunchFor<Rule>& launch, std::int32_t job_number, std::int64_t bucket,
                              std::int64_t part) {
  Extent p;
  p.job = launch.jobs[job_number];
  const bool shares = shares_tile(p.job.bucket);
  p.width = shares ? static_cast<int>(p.job.bucket) / kEach : kWarp;
  if (shares) bucket += lane_number() / p.width;
  p.bucket_number = p.job.buckets_before + bucket;
  p.begin = bucket * p.job.bucket;
  p.m = min_of(p.job.bucket, p.job.n - p.begin);
  p.from = part * piece_values;
  p.count = min_of(piece_values, p.m - p.from);
  p.trip = shares ? p.job.bucket : p.count;
  p.record = bucket * record_bytes(p.job.bucket, count_scales<Rule>(launch), Rule::bits);
  return p;
}

template <class Rule>
__device__ Extent find_piece(const LaunchFor<Rule>& launch, std::int64_t piece) {
  const std::int32_t j = find_job(launch, piece, [](const Job& job) { return job.pieces_before; });
  const std::int64_t bucket = launch.jobs[j].bucket;
  const std::int64_t in_job = piece - launch.jobs[j].pieces_before;
  if (shares_tile(bucket)) return find_bucket<Rule>(launch, j, in_job * (kTile / bucket), 0);
  if (bucket <= piece_values) return find_bucket<Rule>(launch, j, in_job, 0);
  const std::int64_t each = (bucket + piece_values - 1) / piece_values;
  return find_bucket<Rule>(launch, j, in_job / each, in_job % each);
}

// ---- Codes in words

/// The lane's eight codes, value `at` of the bucket first, from `count` 32-bit words.
template <int bits>
__device__ __forceinline__ void load_codes(const std::byte* words, std::int64_t count, std::int64_t at,
                                           std::int32_t* codes) {
  constexpr int per_word = 32 / bits;
  constexpr int taken = bits * kEach >= 32 ? bits * kEach / 32 : 1;
#pragma unroll
  for (int w = 0; w < taken; ++w) {
    const std::int64_t word = at / per_word + w;
    const std::uint32_t x = (word < count ? load_word(words + 4 * word) : 0u) >> (at % per_word * bits);
#pragma unroll
    for (int k = 0; k < kEach / taken; ++k)
      codes[w * (kEach / taken) + k] = static_cast<std::int32_t>(x >> (k * bits) & ((1u << bits) - 1u));
  }
}

/// The inverse; codes after the last value are 0. All lanes of the warp call it. `tile`: 256 words of shared
/// memory for this warp.
template <int bits>
__device__ __forceinline__ void store_codes(std::byte* words, std::int64_t count, std::int64_t at, int width,
                                            const std::int32_t* codes, std::uint32_t* tile) {
  constexpr int per_word = 32 / bits;
  constexpr int taken = bits * kEach >= 32 ? bits * kEach / 32 : 1;
  constexpr int sharers = bits * kEach >= 32 ? 1 : 32 / (bits * kEach);  // lanes of one word
#pragma unroll
  for (int w = 0; w < taken; ++w) {
    std::uint32_t x = 0;
#pragma unroll
    for (int k = 0; k < kEach / taken; ++k)
      x |= static_cast<std::uint32_t>(codes[w * (kEach / taken) + k]) << (k * bits);
    if constexpr (sharers > 1) {
      x <<= lane_number() % sharers * (bits * kEach);
#pragma unroll
      for (int other = 1; other < sharers; other *= 2) x |= __shfl_xor_sync(kAll, x, other);
    }
    const std::int64_t word = at / per_word + w;
    if (taken > 1 && width == kWarp)
      tile[lane_number() * taken + w] = x;
    else if (lane_number() % sharers == 0 && word < count)
      store_word(words + 4 * word, x);
  }
  if (taken > 1 && width == kWarp) {  // neighbouring lanes write neighbouring words
    __syncwarp();
    const std::int64_t first = (at - lane_number() * kEach) / per_word;
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const std::int64_t word = first + w * kWarp + lane_number();
      if (word < count) store_word(words + 4 * word, tile[w * kWarp + lane_number()]);
    }
    __syncwarp();
  }
}

/// The scales of a record. If one is non-finite, the record decodes to NaNs.
template <class Rule>
__device__ __forceinline__ Scales read_scales(const LaunchFor<Rule>& launch, const std::byte* record) {
  const int scales = count_scales<Rule>(launch);
  Scales s{1, 1};
  if (scales > 0) s.a = s.b = load_float(record);
  if (scales > 1) s.b = load_float(record + 4);
  return s;
}
__device__ __forceinline__ bool are_finite(Scales s) {
  return is_finite(s.a) && is_finite(s.b);
}

// ---- What is coded: the rank's own values, or the mean of the contributions; plus the residual

enum class Source : std::uint8_t { own, mean };

/// Values at .. at + 7 of the bucket, of which `left` exist.
template <class Rule, Source source>
__device__ __forceinline__ void load_source(const LaunchFor<Rule>& launch, const Extent& extent,
                                            std::int64_t at, std::int64_t left, float* v) {
  const Job& job = extent.job;
  if (left <= 0) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = 0.0f;
    return;
  }
  if constexpr (source == Source::own) {
    load_values(job.values + extent.begin + at, left, v);
  } else {
    const std::int64_t words = code_words(extent.m, Rule::bits);
#pragma unroll 2
    for (std::int32_t r = 0; r < launch.ranks; ++r) {
      const std::byte* encoding = job.contributions[r];
      const std::byte* record = encoding + Rule::table_bytes + extent.record;
      const Scales s = read_scales<Rule>(launch, record);
      const bool finite = are_finite(s);
      Rule rule = make_rule<Rule>(launch, job, encoding);
      start(rule, s);
      std::int32_t codes[kEach];
      load_codes<Rule::bits>(record + 4 * count_scales<Rule>(launch), words, at, codes);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const float q = finite ? rule.value(codes[k]) : canonical_nan();
        v[k] = r == 0 ? q : v[k] + q;
      }
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] *= launch.weight;
  }
  if (job.residual != nullptr) {
    float residual[kEach];
    load_values(job.residual + extent.begin + at, left, residual);
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] += residual[k];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (k >= left) v[k] = 0.0f;
}

// ---- Scanning

/// For h = 16, 8, 4, 2, 1: sum j += sum j+h. The result is lane 0's, given to all.
__device__ inline float fold(float partial) {
#pragma unroll
  for (int h = kWarp / 2; h > 0; h /= 2) partial += __shfl_down_sync(kAll, partial, h);
  return __shfl_sync(kAll, partial, 0);
}

/// Scans a piece: add() for each lane's values, then finish() for the bucket's result.
template <class Rule>
class Scanner {
  static constexpr bool sides = Rule::scales[0] == Scale::sides;

 public:
  __device__ Scanner(Scale scale, int width, float* tile) : scale_(scale), width_(width), tile_(tile) {}

  /// The lane's eight values of the next tile, of which `left` exist (the others are +0).
  __device__ __forceinline__ void add(const float* v, std::int64_t left) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const std::int32_t magnitude_bits = ScalarLanes::bits(v[k]) & magnitude_mask;
      scan_.max = magnitude_bits > scan_.max ? magnitude_bits : scan_.max;
      if constexpr (sides) scan_.positive += k < left && v[k] >= 0.0f;
    }
    if (!sums()) return;
    if (width_ < kWarp) return add_group(v);
    // Through shared memory, so that lane j adds values j, j + 32, ... in this order.
    store_values(tile_ + lane_number() * kEach, kEach, v);
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kEach; ++r) add_one(tile_[r * kWarp + lane_number()], sums_);
    __syncwarp();
  }

  /// Returns the same to all lanes of the bucket.
  __device__ PieceScan finish() {
    scan_.max = max_of(scan_.max, width_);
    if constexpr (sides) scan_.positive = sum_of(scan_.positive, width_);
    if (width_ == kWarp && sums()) {
      scan_.sum[0] = fold(sums_[0]);
      if constexpr (sides) scan_.sum[1] = fold(sums_[1]);
    }
    return scan_;
  }

 private:
  __device__ bool sums() const { return scale_ != Scale::max && scale_ != Scale::none; }

  __device__ __forceinline__ void add_one(float x, float* sums) const {
    if (scale_ == Scale::norm) {
      sums[0] = __fmaf_rn(x, x, sums[0]);
    } else if (scale_ == Scale::mean) {
      sums[0] += magnitude<ScalarLanes>(x);
    } else {
      sums[0] += x >= 0.0f ? x : 0.0f;
      sums[1] += x >= 0.0f ? 0.0f : x;
    }
  }

  /// A bucket of 32, 64 or 128 values, eight in each lane: row r of 32 lies in lanes 4r .. 4r+3. Their
  /// partial sums are added row by row in the first row's lanes; the other lanes' sums are not used.
  __device__ void add_group(const float* v) {
    float sums[kEach][2] = {};
#pragma unroll
    for (int k = 0; k < kEach; ++k) add_one(v[k], sums[k]);
    for (int row = 1; row < width_ / 4; ++row) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) add_one(__shfl_down_sync(kAll, v[k], 4 * row), sums[k]);
    }
#pragma unroll
    for (int side = 0; side < (sides ? 2 : 1); ++side) {
      float p[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) p[k] = sums[k][side];
#pragma unroll
      for (int h = 2; h > 0; h /= 2)  // 16 and 8 values further
#pragma unroll
        for (int k = 0; k < kEach; ++k) p[k] += __shfl_down_sync(kAll, p[k], h);
#pragma unroll
      for (int h = kEach / 2; h > 0; h /= 2)
#pragma unroll
        for (int k = 0; k < h; ++k) p[k] += p[k + h];
      scan_.sum[side] = __shfl_sync(kAll, p[0], lane_number() & ~(width_ - 1));
    }
  }

  const Scale scale_;
  const int width_;
  float* tile_;
  PieceScan scan_;
  float sums_[2] = {0, 0};
};

/// A bucket's scales from its scan; `positive` counts over all its pieces.
template <class Rule>
__device__ Scales scales_of(const LaunchFor<Rule>& launch, const PieceScan& scan, std::int64_t positive,
                            std::int64_t m) {
  const Scale scale = scale_by<Rule>(launch.options);
  if (scale != Scale::sides) {
    const float s = scale_of(scale, {scan.max, scan.sum[0]}, m);
    return {s, s};
  }
  if (!is_finite(scan.sum[0]) || !is_finite(scan.sum[1])) return {canonical_nan(), canonical_nan()};
  return {mean(scan.sum[0], positive), mean(scan.sum[1], m - positive)};
}

/// Combines the scans of a bucket's pieces; block sums are added as the fixed-order sum adds values.
__device__ inline PieceScan combine(const PieceScan* scans, std::int64_t pieces, std::int64_t* positive) {
  const int lane = lane_number();
  PieceScan out;
  std::int64_t count = 0;
  float upper[2] = {0, 0};
  for (std::int64_t begin = 0; begin < pieces; begin += FixedOrderSum::block) {
    const std::int64_t end = min_of(pieces, begin + FixedOrderSum::block);
    float sums[2] = {0, 0};
    for (std::int64_t i = begin + lane; i < end; i += kWarp) {
      out.max = scans[i].max > out.max ? scans[i].max : out.max;
      count += scans[i].positive;
      for (int side = 0; side < 2; ++side) sums[side] += scans[i].sum[side];
    }
    for (int side = 0; side < 2; ++side) {
      out.sum[side] = fold(sums[side]);
      if (lane == begin / FixedOrderSum::block % kWarp) upper[side] += out.sum[side];
    }
  }
  if (pieces > FixedOrderSum::block)
    for (int side = 0; side < 2; ++side) out.sum[side] = fold(upper[side]);
  out.max = max_of(out.max, kWarp);
  *positive = sum_of(count, kWarp);
  return out;
}

}  // namespace
}  // namespace lpsgd::cuda
