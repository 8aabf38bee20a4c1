// topk (quant/codecs/topk.cc) on the device: one block per bucket. A bucket of up to 4096 values, or the
// owner's mean of one, is read once and stays in the block's shared memory. A larger one, and its mean, are
// read from device memory in all five passes.
//
// Memory moved per value of a bucket that is kept, k of m values sent: encode 4 bytes, 8 more with a
// residual, and 8 k/m; reduce 8 (ranks + 1) k/m, 8 more with a residual; decode 4 and 8 k/m, adding 16 k/m.
// Of a larger bucket, beside the records: encode 20 bytes, reduce 32, either 24 more with a residual.
// One launch; another one if larger buckets are there.
#include <algorithm>

#include "quant/cuda/topk_device.h"

namespace lpsgd::cuda {
namespace {

__global__ void __launch_bounds__(kBlock, 4) encode_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float kept[shared_values];
  __shared__ std::uint32_t histogram[kKeptDigits];
  __shared__ std::uint32_t
      totals[kHeld * kBlockWarps];  // of a tile: above the threshold, and 2^16 times tied
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = lane_number();
  for (int i = static_cast<int>(threadIdx.x); i < kKeptDigits; i += kBlock) histogram[i] = 0;
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
      store_values(kept + held_at(h), kEach, v[h]);
    }
    const Threshold threshold = find_kept_threshold(kept, m, p.kept, histogram);

    std::uint32_t before[kHeld];  // of the lanes before, as totals
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      std::int32_t keys[kEach];
      load_keys(kept, h, m, v[0], keys);
      std::uint32_t count = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        count += keys[k] > threshold.key ? 1u : keys[k] == threshold.key ? 1u << 16 : 0u;
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
      std::int32_t keys[kEach];
      load_keys(kept, h, m, v[0], keys);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const bool is_above = keys[k] > threshold.key, is_tied = keys[k] == threshold.key;
        const bool keep = is_above || (is_tied && tied < ties);
        const float x = v[0][k];
        if (keep) {
          const std::uint32_t position = above + (tied < ties ? tied : ties);
          store_word(record + 4 * position, static_cast<std::uint32_t>(held_at(h) + k));
          store_float(record + 4 * (p.kept + position), canonical<ScalarLanes>(x));
          finite &= is_finite(x);
        }
        above += is_above;
        tied += is_tied;
        v[0][k] = canonical<ScalarLanes>(keep ? x - (x + 0.0f) : x);
      }
      if (residual != nullptr) store_values(residual + held_at(h), m - held_at(h), v[0]);
      if (job.error != nullptr)
        for (int k = 0; k < kEach && held_at(h) + k < m; ++k)
          lost += static_cast<double>(v[0][k]) * static_cast<double>(v[0][k]);
    }
    if (!finite) *job.non_finite = 1;
    if (job.error != nullptr) add_error(job.error, own, lost);
  }
}

// ---- Larger buckets

/// Records of at most 2^32 - 1 values a bucket; the counts of a histogram likewise.
__global__ void __launch_bounds__(kBlock) encode_large_topk_kernel(TopkLaunch launch) {
  __shared__ std::uint32_t aboves[kBlockWarps], ties[kBlockWarps];
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = lane_number();
  for (std::int64_t b = blockIdx.x; b < launch.buckets; b += gridDim.x) {
    const TopkBucket p = find_topk(launch, launch.bucket_first + b);
    const Job& job = *p.job;
    if (job.bucket <= shared_values) continue;
    float* residual = job.residual != nullptr ? job.residual + p.begin : nullptr;
    const float* source = job.values != nullptr ? job.values + p.begin : nullptr;
    if (job.contributions != nullptr) {
      float* sum = job.means + p.begin;
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < p.m; i += kBlock) sum[i] = 0.0f;
      bool finite = true;
      for (std::int32_t r = 0; r < job.ranks; ++r) {
        __syncthreads();
        add_record(job.contributions[r] + p.record, p, sum, &finite);
      }
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < p.m; i += kBlock) sum[i] *= launch.weight;
      source = sum;
      __syncthreads();
    }
    const auto value = [&](std::int64_t i) {
      return residual != nullptr ? source[i] + residual[i] : source[i];
    };
    Threshold threshold = find_threshold(p.m, p.kept, value);

    std::byte* record = job.bytes + p.record;
    std::int64_t above = 0, tied = 0;  // among the values before
    bool finite = true;
    double own = 0, lost = 0;
    for (std::int64_t at = 0; at < p.m; at += kBlock) {
      const std::int64_t i = at + threadIdx.x;
      const bool exists = i < p.m;
      const float v = exists ? value(i) : 0.0f;
      const std::int32_t k = exists ? topk_key(v) : -1;
      const unsigned is_above = __ballot_sync(kAll, k > threshold.key);
      const unsigned is_tied = __ballot_sync(kAll, k == threshold.key);
      __syncthreads();
      if (lane == 0) {
        aboves[warp] = static_cast<std::uint32_t>(__popc(is_above));
        ties[warp] = static_cast<std::uint32_t>(__popc(is_tied));
      }
      __syncthreads();
      const unsigned before = (1u << lane) - 1u;
      std::int64_t above_before = above + __popc(is_above & before),
                   tied_before = tied + __popc(is_tied & before);
      for (int w = 0; w < kBlockWarps; ++w) {
        if (w < warp) {
          above_before += aboves[w];
          tied_before += ties[w];
        }
        above += aboves[w];
        tied += ties[w];
      }
      const bool keep = k > threshold.key || (k == threshold.key && tied_before < threshold.ties);
      if (keep) {
        const std::int64_t position = above_before + min_of(tied_before, threshold.ties);
        store_word(record + 4 * position, static_cast<std::uint32_t>(i));
        store_float(record + 4 * (p.kept + position), canonical<ScalarLanes>(v));
        finite &= is_finite(v);
      }
      if (!exists) continue;
      const float left = canonical<ScalarLanes>(keep ? v - (v + 0.0f) : v);
      if (residual != nullptr) residual[i] = left;
      if (job.error != nullptr) {
        own += static_cast<double>(source[i]) * static_cast<double>(source[i]);
        lost += static_cast<double>(left) * static_cast<double>(left);
      }
    }
    if (!finite) *job.non_finite = 1;
    if (job.error != nullptr) add_error(job.error, own, lost);
  }
}

template <bool adds>
__global__ void __launch_bounds__(kBlock) decode_topk_kernel(TopkLaunch launch) {
  for (std::int64_t b = blockIdx.x; b < launch.buckets; b += gridDim.x) {
    const TopkBucket p = find_topk(launch, launch.bucket_first + b);
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
  if (launch.buckets == 0) return;
  const TopkLaunch own{launch, options_of<TopkOptions>(options)};
  if (launch.kept_buckets > 0)
    LPSGD_LAUNCH(encode_topk_kernel, blocks(launch.kept_buckets), kBlock, stream)(own);
  if (launch.kept_buckets < launch.buckets)
    LPSGD_LAUNCH(encode_large_topk_kernel, blocks(launch.buckets), kBlock, stream)(own);
}
void decode(const Launch& launch, const CodecOptions& options, bool adds, cudaStream_t stream) {
  if (launch.buckets == 0) return;
  const TopkLaunch own{launch, options_of<TopkOptions>(options)};
  const auto kernel = adds ? decode_topk_kernel<true> : decode_topk_kernel<false>;
  LPSGD_LAUNCH(kernel, blocks(launch.buckets), kBlock, stream)(own);
}

}  // namespace

CodecKernels topk_kernels() {
  return {.encode = encode, .decode = decode, .unit = CodecKernels::Unit::bucket};
}

}  // namespace lpsgd::cuda
