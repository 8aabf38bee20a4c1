// Scanning the buckets of codecs with bucket scales for their scales. Internal to quant.
#pragma once

#include "quant/cuda/source_device.h"

namespace lpsgd::cuda {
namespace {

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
  __device__ __forceinline__ void add(const float* v, int left) {
    add_unordered(v, left);
    if (!sums()) return;
    if (width_ < kWarp) return add_group(v);
    // Through shared memory, so that lane j adds values j, j + 32, ... in this order.
    store_values(tile_ + lane_number() * kEach, kEach, v);
    __syncwarp();
    add_rows(tile_, kEach);
    __syncwarp();
  }
  /// What needs no order: the largest, and the count.
  __device__ __forceinline__ void add_unordered(const float* v, int left) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const std::int32_t magnitude_bits = ScalarLanes::bits(v[k]) & magnitude_mask;
      scan_.max = magnitude_bits > scan_.max ? magnitude_bits : scan_.max;
      if constexpr (sides) scan_.positive += v[k] >= 0.0f;
    }
    if constexpr (sides) {
      if (left < kEach) scan_.positive -= left > 0 ? kEach - left : kEach;
    }
  }
  /// What needs it: rows of 32 values in shared memory.
  __device__ __forceinline__ void add_rows(const float* values, int rows) {
    if (!sums()) return;
#pragma unroll 8
    for (int r = 0; r < rows; ++r) add_one(values[r * kWarp + lane_number()], sums_);
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

/// Combines the scans of a bucket's pieces; block sums are added as the fixed-order sum adds values. One warp
/// adds them all, so it loads eight rows at once.
__device__ inline PieceScan combine(const PieceScan* scans, std::int64_t pieces, std::int64_t* positive) {
  constexpr int rows = 8;
  const int lane = lane_number();
  PieceScan out;
  std::int64_t count = 0;
  float upper[2] = {0, 0};
  for (std::int64_t begin = 0; begin < pieces; begin += FixedOrderSum::block) {
    const std::int64_t end = min_of(pieces, begin + FixedOrderSum::block);
    float sums[2] = {0, 0};
    for (std::int64_t first = begin + lane; first < end; first += rows * kWarp) {
      PieceScan read[rows];
#pragma unroll
      for (int r = 0; r < rows; ++r)
        if (first + r * kWarp < end) read[r] = scans[first + r * kWarp];
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        if (first + r * kWarp >= end) continue;
        out.max = read[r].max > out.max ? read[r].max : out.max;
        count += read[r].positive;
        for (int side = 0; side < 2; ++side) sums[side] += read[r].sum[side];
      }
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
