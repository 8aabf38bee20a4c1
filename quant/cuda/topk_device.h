// What topk's kernels share: its buckets, the order of magnitudes, and the threshold above which a bucket's
// values are sent. Internal to quant/cuda.
#pragma once

#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int kBlock = 256, kBlockWarps = kBlock / kWarp;
constexpr int kHeld = static_cast<int>(shared_values) / (kBlock * kEach);  // tiles of a warp
constexpr int kDigits = 256;                                               // of larger buckets
constexpr int kKeptDigits = 1 << 11;

using TopkLaunch = LaunchOf<TopkOptions>;

struct TopkBucket {
  const Job* job;
  std::int64_t begin, m, kept, record;
};

/// Bucket b of the batch, or of those of its buckets that are kept.
__device__ TopkBucket find_topk(const TopkLaunch& launch, std::int64_t b, bool of_kept = false) {
  TopkBucket p;
  const auto before = [=](const Job& one) { return of_kept ? one.kept_before : one.buckets_before; };
  p.job = &launch.jobs[find_job(launch, b, before)];
  const std::int64_t bucket = b - before(*p.job);
  p.begin = bucket * p.job->bucket;
  p.m = min_of(p.job->bucket, p.job->n - p.begin);
  p.kept = topk_kept(launch.options.density, p.m);
  p.record = bucket * 8 * topk_kept(launch.options.density, p.job->bucket);
  return p;
}

/// The magnitudes' order: every NaN alike, above infinity.
__device__ __forceinline__ std::int32_t topk_key(float v) {
  return ScalarLanes::bits(canonical<ScalarLanes>(v)) & magnitude_mask;
}

/// Adds the values of a record to `sum`, which holds the bucket's. encode writes each position
/// once.
__device__ __forceinline__ void add_record(const std::byte* record, const TopkBucket& p, float* sum,
                                           bool* finite) {
  for (std::int64_t i = threadIdx.x; i < p.kept; i += blockDim.x) {
    const std::int64_t position = load_word(record + 4 * i);
    if (position >= p.m) continue;
    const float value = load_float(record + 4 * (p.kept + i));
    sum[position] = add<ScalarLanes>(sum[position], value);
    *finite &= is_finite(value);
  }
}

/// The kept-th largest key and how many of the values with it are kept, from histograms of eight bits at a
/// time: bits 31-24 (the sign's is 0), ..., 7-0.
struct Threshold {
  std::int32_t key = 0;
  std::int64_t ties = 0;
};

/// The digit of the `wanted`-th largest key, and its rank among the keys with that digit. Warp 0, eight
/// digits a lane.
__device__ void choose_digit(const std::uint32_t* histogram, std::int64_t wanted, int* digit,
                             std::int64_t* left) {
  const int lane = lane_number();
  std::int64_t mine = 0;
  for (int d = 0; d < kDigits / kWarp; ++d) mine += histogram[lane * (kDigits / kWarp) + d];
  std::int64_t above = mine;  // of this lane's digits and the higher lanes'
  for (int h = 1; h < kWarp; h *= 2) {
    const std::int64_t other = __shfl_down_sync(kAll, above, h);
    if (lane + h < kWarp) above += other;
  }
  above -= mine;
  if (above < wanted && wanted <= above + mine) {
    std::int64_t rest = wanted - above;
    int d = (lane + 1) * (kDigits / kWarp) - 1;
    for (; histogram[d] < rest; --d) rest -= histogram[d];
    *digit = d;
    *left = rest;
  }
}

template <class Value>
__device__ Threshold find_threshold(std::int64_t m, std::int64_t kept, Value value) {
  __shared__ std::uint32_t histogram[kDigits];
  __shared__ int digit;
  __shared__ std::int64_t left;
  Threshold found{0, kept};
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kBlock) histogram[i] = 0;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < m; i += kBlock) {
      const std::int32_t k = topk_key(value(i));
      if (shift == 24 || (k >> (shift + 8)) == (found.key >> (shift + 8)))
        atomicAdd(&histogram[k >> shift & (kDigits - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) choose_digit(histogram, found.ties, &digit, &left);
    __syncthreads();
    found.key |= digit << shift;
    found.ties = left;
  }
  return found;
}

// ---- Buckets that are kept: lane j of warp w has values 8j .. 8j+7 of tiles w and w + 8

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

/// The first of this thread's eight values of its tile h.
__device__ __forceinline__ int held_at(int h) {
  return (static_cast<int>(threadIdx.x / kWarp) + h * kBlockWarps) * kTile + lane_number() * kEach;
}

/// The keys of this thread's eight values of its tile h, of m values in shared memory; -1: none.
__device__ __forceinline__ void load_keys(const float* kept, int h, int m, float* v, std::int32_t* keys) {
  load_values(kept + held_at(h), kEach, v);
#pragma unroll
  for (int k = 0; k < kEach; ++k) keys[k] = held_at(h) + k < m ? topk_key(v[k]) : -1;
}

/// find_threshold() by digits of 11, 10 and 10 bits. `histogram`, kKeptDigits zeros, is left as it was.
__device__ __forceinline__ Threshold find_kept_threshold(const float* kept, int m, std::int64_t wanted,
                                                         std::uint32_t* histogram) {
  __shared__ std::uint32_t warps[kBlockWarps];
  __shared__ std::uint32_t digit, rest;
  Threshold found{0, wanted};
#pragma unroll 1
  for (int shift = 20; shift >= 0; shift -= 10) {
    constexpr int each = kKeptDigits / kBlock;
    const std::int32_t digits = shift == 20 ? kKeptDigits : kKeptDigits / 2;
    // Of the keys that begin as the one wanted.
    const std::int32_t low = found.key, high = low + (shift == 20 ? magnitude_mask : (1 << (shift + 10)) - 1);
#pragma unroll 1
    for (int h = 0; h < kHeld; ++h) {
      float v[kEach];
      std::int32_t keys[kEach];
      load_keys(kept, h, m, v, keys);
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (keys[k] >= low && keys[k] <= high) atomicAdd(&histogram[keys[k] >> shift & (digits - 1)], 1u);
    }
    __syncthreads();
    std::uint32_t* mine = histogram + threadIdx.x * each;
    std::uint32_t count[each], sum = 0;
#pragma unroll
    for (int d = 0; d < each; ++d) {
      sum += count[d] = mine[d];
      mine[d] = 0;
    }
    std::uint32_t above = sum_after(sum, warps);
    const auto ties = static_cast<std::uint32_t>(found.ties);
    if (above < ties && ties <= above + sum) {
#pragma unroll
      for (int d = each - 1; d >= 0; --d) {
        if (above < ties && ties <= above + count[d]) {
          digit = threadIdx.x * each + static_cast<unsigned>(d);
          rest = ties - above;
        }
        above += count[d];
      }
    }
    __syncthreads();
    found.key |= static_cast<std::int32_t>(digit) << shift;
    found.ties = rest;
  }
  return found;
}

}  // namespace
}  // namespace lpsgd::cuda
