// topk (quant/codecs/topk.cc) on the device. A bucket of up to 4096 values, or the owner's mean of one, is
// read once by one block and stays in its registers. Larger ones are coded in pieces (topk_large.cu).
//
// Memory moved per value of a bucket, k of m values sent: encode 4 bytes, 8 more with a residual, and 8 k/m;
// reduce 8 (ranks + 1) k/m, 8 more with a residual; decode 4 and 8 k/m, adding 16 k/m. One launch.
#include <algorithm>

#include "quant/cuda/topk_device.h"

namespace lpsgd::cuda {
namespace {

/// Bucket b of the batch, or of those of its buckets that are kept.
__device__ TopkBucket find_topk(const TopkLaunch& launch, std::int64_t b, bool of_kept = false) {
  const auto before = [=](const Job& one) { return of_kept ? one.kept_before : one.buckets_before; };
  const Job& job = launch.jobs[find_job(launch, b, before)];
  return bucket_of(launch, job, b - before(job));
}

/// Adds the values of a record to `sum`, which holds the bucket's. encode writes each position once.
__device__ __forceinline__ void add_record(const std::byte* record, const TopkBucket& p, float* sum,
                                           bool* finite) {
  for (std::int64_t i = threadIdx.x; i < p.kept; i += blockDim.x)
    add_one(record, p.kept, i, 0, p.m, sum, finite);
}

/// The kept-th largest key, and how many of the values with it are kept.
struct Threshold {
  std::int32_t key = 0;
  std::int64_t ties = 0;
};

/// Of this thread's values; -1: there is none.
using Keys = std::int32_t[kHeld][kEach];

/// Keys from `low` on are those of at least `wanted` of the block's values, and `high` is the largest.
struct KeyRange {
  std::int32_t low = 0, high = 0;
};

/// Most values are far below the threshold, and need not be counted to find it. If each of the block's warps
/// has k values of at least x, the block has k times as many as it has warps. For k up to 32 a warp finds
/// such an x from the largest value of each lane.
__device__ __forceinline__ KeyRange find_range(const Keys& keys, std::int64_t wanted, KeyRange* warps) {
  std::int32_t largest = -1;
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
#pragma unroll
    for (int k = 0; k < kEach; ++k) largest = keys[h][k] > largest ? keys[h][k] : largest;
  KeyRange range{0, max_of(largest, kWarp)};
  const std::int64_t of_warp = (wanted + kBlockWarps - 1) / kBlockWarps;
  if (of_warp <= kWarp) {
    range.low = range.high;
    for (std::int64_t found = 0; range.low >= 0;) {
      const unsigned lanes = __ballot_sync(kAll, largest == range.low);
      found += __popc(lanes);
      if (found >= of_warp) break;
      if (largest == range.low) largest = -1;
      range.low = max_of(largest, kWarp);
    }
    range.low = range.low < 0 ? 0 : range.low;
  }
  if (lane_number() == 0) warps[threadIdx.x / kWarp] = range;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kBlockWarps; ++w) {
    range.low = warps[w].low < range.low ? warps[w].low : range.low;
    range.high = warps[w].high > range.high ? warps[w].high : range.high;
  }
  return range;
}

/// The threshold of the block's values, by digits of 8 bits of their keys' distance from `range.low`.
/// `histogram`, kBlock zeros, is left as it was.
__device__ __forceinline__ Threshold find_kept_threshold(const Keys& keys, std::int64_t wanted,
                                                         const KeyRange& range, std::uint32_t* histogram) {
  constexpr int digit_bits = 8;
  static_assert(1 << digit_bits == kBlock);
  __shared__ std::uint32_t warps[kBlockWarps];
  __shared__ std::uint32_t digit, rest;
  Threshold found{range.low, wanted};
#pragma unroll 1
  for (int left = 32 - __clz(range.high - range.low); left > 0;) {
    const int shift = left > digit_bits ? left - digit_bits : 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const auto distance = static_cast<std::uint32_t>(keys[h][k] - found.key);
        if (distance >> left == 0) atomicAdd(&histogram[distance >> shift], 1u);
      }
    __syncthreads();
    choose_digit<kBlock>(histogram, static_cast<std::uint32_t>(found.ties), warps,
                         [&](std::int32_t d, std::uint32_t rank) {
                           digit = static_cast<std::uint32_t>(d);
                           rest = rank;
                         });
    __syncthreads();
    found.key += static_cast<std::int32_t>(digit << shift);
    found.ties = rest;
    left = shift;
  }
  return found;
}

__global__ void __launch_bounds__(kBlock, 3) encode_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float kept[shared_values];
  __shared__ std::uint32_t histogram[kBlock];
  __shared__ KeyRange ranges[kBlockWarps];
  __shared__ std::uint32_t
      totals[kHeld * kBlockWarps];  // of a tile: above the threshold, and 2^16 times tied
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = lane_number();
  histogram[threadIdx.x] = 0;
  for (std::int64_t b = blockIdx.x; b < launch.kept_buckets; b += gridDim.x) {
    const TopkBucket p = find_topk(launch, b, true);
    const Job& job = *p.job;
    const int m = static_cast<int>(p.m);
    float* residual = job.residual != nullptr ? job.residual + p.begin : nullptr;
    double own = 0, lost = 0;
    bool finite = true;
    __syncthreads();
    if (job.contributions != nullptr) {
      for (int i = static_cast<int>(threadIdx.x) * 4; i < shared_values; i += kBlock * 4)
        *reinterpret_cast<float4*>(kept + i) = make_float4(0, 0, 0, 0);
      for (std::int32_t r = 0; r < job.ranks; ++r) {
        __syncthreads();
        bool ignored = true;
        add_record(job.contributions[r] + p.record, p, kept, &ignored);
      }
      __syncthreads();
    }
    float v[kHeld][kEach];
    Keys keys;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (job.contributions == nullptr) {
        load_values(job.values + p.begin + held_at(h), m - held_at(h), v[h]);
      } else {
        load_values(kept + held_at(h), kEach, v[h]);
#pragma unroll
        for (int k = 0; k < kEach; ++k) v[h][k] *= launch.weight;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (job.error != nullptr)  // without the residual
        for (int k = 0; k < kEach; ++k) own += static_cast<double>(v[h][k]) * static_cast<double>(v[h][k]);
      if (residual != nullptr) {
        float r[kEach];
        load_values(residual + held_at(h), m - held_at(h), r);
#pragma unroll
        for (int k = 0; k < kEach; ++k) v[h][k] += r[k];
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) keys[h][k] = held_at(h) + k < m ? topk_key(v[h][k]) : -1;
    }
    const KeyRange range = find_range(keys, p.kept, ranges);
    const Threshold threshold = find_kept_threshold(keys, p.kept, range, histogram);

    std::uint32_t before[kHeld];  // of the lanes before, as totals
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      std::uint32_t count = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        count += keys[h][k] > threshold.key ? 1u : keys[h][k] == threshold.key ? 1u << 16 : 0u;
      std::uint32_t upto = count;
      for (int other = 1; other < kWarp; other *= 2) {
        const std::uint32_t x = __shfl_sync(kAll, upto, lane >= other ? lane - other : lane);
        if (lane >= other) upto += x;
      }
      if (lane == kWarp - 1) totals[warp + h * kBlockWarps] = upto;
      before[h] = upto - count;
    }
    __syncthreads();
    std::byte* record = job.bytes + p.record;
    const auto ties = static_cast<std::uint32_t>(threshold.ties);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      for (int t = 0; t < warp + h * kBlockWarps; ++t) before[h] += totals[t];
      std::uint32_t above = before[h] & 0xffffu, tied = before[h] >> 16;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const bool is_above = keys[h][k] > threshold.key, is_tied = keys[h][k] == threshold.key;
        const bool keep = is_above || (is_tied && tied < ties);
        const float x = v[h][k];
        if (keep) {
          const std::uint32_t position = above + (tied < ties ? tied : ties);
          store_word(record + 4 * position, static_cast<std::uint32_t>(held_at(h) + k));
          store_float(record + 4 * (p.kept + position), canonical<ScalarLanes>(x));
          finite &= is_finite(x);
        }
        above += is_above;
        tied += is_tied;
        v[h][k] = canonical<ScalarLanes>(keep ? x - (x + 0.0f) : x);
      }
      if (residual != nullptr) store_values(residual + held_at(h), m - held_at(h), v[h]);
      if (job.error != nullptr)
        for (int k = 0; k < kEach && held_at(h) + k < m; ++k)
          lost += static_cast<double>(v[h][k]) * static_cast<double>(v[h][k]);
    }
    if (!finite) *job.non_finite = 1;
    if (job.error != nullptr) add_error(job.error, own, lost);
  }
}

template <bool adds>
__global__ void __launch_bounds__(kBlock) decode_topk_kernel(TopkLaunch launch) {
  for (std::int64_t b = blockIdx.x; b < launch.buckets; b += gridDim.x) {
    const TopkBucket p = find_topk(launch, launch.bucket_first + b);
    if (p.job->bucket > shared_values) continue;
    float* out = p.job->out + p.begin;
    if constexpr (!adds) {
      for (std::int64_t i = threadIdx.x; i < p.m; i += kBlock) out[i] = 0.0f;
      __syncthreads();
    }
    bool finite = true;
    add_record(p.job->bytes + p.record, p, out, &finite);
    if (!finite) *p.job->non_finite = 1;
  }
}

unsigned blocks(std::int64_t buckets) {
  return static_cast<unsigned>(std::min<std::int64_t>(buckets, 1 << 20));
}

void encode(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  const TopkLaunch own{launch, options_of<TopkOptions>(options)};
  if (launch.kept_buckets > 0)
    LPSGD_LAUNCH(encode_topk_kernel, blocks(launch.kept_buckets), kBlock, stream)(own);
  if (launch.pieces > 0) encode_topk_pieces(launch, own.options, stream);
}
void decode(const Launch& launch, const CodecOptions& options, bool adds, cudaStream_t stream) {
  const TopkLaunch own{launch, options_of<TopkOptions>(options)};
  const auto kernel = adds ? decode_topk_kernel<true> : decode_topk_kernel<false>;
  if (launch.kept_buckets > 0 && launch.buckets > 0)
    LPSGD_LAUNCH(kernel, blocks(launch.buckets), kBlock, stream)(own);
  if (launch.pieces > 0) decode_topk_pieces(launch, own.options, adds, stream);
}

}  // namespace

CodecKernels topk_kernels() {
  return {.encode = encode, .decode = decode, .unit = CodecKernels::Unit::bucket};
}

}  // namespace lpsgd::cuda
