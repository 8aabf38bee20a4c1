// What topk's kernels share: its buckets, the order of magnitudes, and the threshold above which a bucket's
// values are sent. Internal to quant/cuda.
#pragma once

#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int kBlock = 256, kBlockWarps = kBlock / kWarp;
constexpr int kHeld = static_cast<int>(shared_values) / (kBlock * kEach);  // tiles of a warp

using TopkLaunch = LaunchOf<TopkOptions>;

struct TopkBucket {
  const Job* job;
  std::int64_t begin, m, kept, record;
};

/// The job's bucket of this number.
__device__ __forceinline__ TopkBucket bucket_of(const TopkLaunch& launch, const Job& job,
                                                std::int64_t bucket) {
  TopkBucket p;
  p.job = &job;
  p.begin = bucket * job.bucket;
  p.m = min_of(job.bucket, job.n - p.begin);
  p.kept = topk_kept(launch.options.density, p.m);
  p.record = bucket * 8 * topk_kept(launch.options.density, job.bucket);
  return p;
}
/// The magnitudes' order: every NaN alike, above infinity.
__device__ __forceinline__ std::int32_t topk_key(float v) {
  return ScalarLanes::bits(canonical<ScalarLanes>(v)) & magnitude_mask;
}

/// Adds value i of a bucket's record to sum[position - from], where that is one of `count`.
__device__ __forceinline__ void add_one(const std::byte* record, std::int64_t kept, std::int64_t i,
                                        std::int64_t from, std::int64_t count, float* sum, bool* finite) {
  const std::int64_t at = static_cast<std::int64_t>(load_word(record + 4 * i)) - from;
  if (at < 0 || at >= count) return;
  const float value = load_float(record + 4 * (kept + i));
  sum[at] = add<ScalarLanes>(sum[at], value);
  *finite &= is_finite(value);
}
/// The sum of the counts of the threads after this one.
__device__ __forceinline__ std::uint32_t sum_after(std::uint32_t mine, std::uint32_t* warps) {
  const int lane = lane_number(), warp = static_cast<int>(threadIdx.x / kWarp);
  std::uint32_t sum = mine;
  for (int h = 1; h < kWarp; h *= 2) {
    const std::uint32_t other = __shfl_down_sync(kAll, sum, h);
    if (lane + h < kWarp) sum += other;
  }
  if (lane == 0) warps[warp] = sum;
  __syncthreads();
  sum -= mine;
  for (int w = warp + 1; w < kBlockWarps; ++w) sum += warps[w];
  return sum;
}

/// The digit of the `wanted`-th largest of the keys that `counts` counts by `digits` digits, and its rank
/// among those with that digit: one thread calls found(digit, rank). Leaves zeros in `counts`.
template <int digits, class Found>
__device__ __forceinline__ void choose_digit(std::uint32_t* counts, std::uint32_t wanted,
                                             std::uint32_t* warps, Found found) {
  constexpr int each = digits / kBlock;
  std::uint32_t* mine = counts + threadIdx.x * each;
  std::uint32_t count[each], sum = 0;
#pragma unroll
  for (int d = 0; d < each; ++d) {
    sum += count[d] = mine[d];
    mine[d] = 0;
  }
  std::uint32_t above = sum_after(sum, warps);
  if (above < wanted && wanted <= above + sum) {
#pragma unroll
    for (int d = each - 1; d >= 0; --d) {
      if (above < wanted && wanted <= above + count[d])
        found(static_cast<std::int32_t>(threadIdx.x) * each + d, wanted - above);
      above += count[d];
    }
  }
}

// ---- A block's values: lane j of warp w has values 8j .. 8j+7 of tiles w and w + 8

/// The first of this thread's eight values of its tile h.
__device__ __forceinline__ int held_at(int h) {
  return (static_cast<int>(threadIdx.x / kWarp) + h * kBlockWarps) * kTile + lane_number() * kEach;
}

}  // namespace
}  // namespace lpsgd::cuda
