// topk (quant/codecs/topk.cc) on the device: one block per bucket. A bucket that fits is read once and stays
// in shared memory, also the owner's mean. A larger one, and its mean, are read from device memory in all
// five passes.
//
// Memory moved per value of a bucket that fits, k of m values kept: encode 4 bytes, 8 more with a residual,
// and 8 k/m; reduce 8 (ranks + 1) k/m, 8 more with a residual; decode 4 and 8 k/m, adding 16 k/m.
#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int kBlock = 256, kBlockWarps = kBlock / kWarp;
constexpr int kDigits = 256;

using TopkLaunch = LaunchOf<TopkOptions>;

struct TopkBucket {
  const Job* job;
  std::int64_t begin, m, kept, record;
};

__device__ TopkBucket find_topk(const TopkLaunch& launch, std::int64_t b) {
  TopkBucket p;
  p.job = &launch.jobs[find_job(launch, b, [](const Job& one) { return one.buckets_before; })];
  const std::int64_t bucket = b - p.job->buckets_before;
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

/// Records of at most 2^32 - 1 values a bucket; the counts of a histogram likewise.
__global__ void __launch_bounds__(kBlock) encode_topk_kernel(TopkLaunch launch) {
  __shared__ float kept[shared_values];  // the bucket's values
  __shared__ std::uint32_t aboves[kBlockWarps], ties[kBlockWarps];
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = lane_number();
  for (std::int64_t b = blockIdx.x; b < launch.buckets; b += gridDim.x) {
    const TopkBucket p = find_topk(launch, launch.bucket_first + b);
    const Job& job = *p.job;
    const bool fits = p.m <= shared_values;
    float* residual = job.residual != nullptr ? job.residual + p.begin : nullptr;
    const float* source = job.values != nullptr ? job.values + p.begin : nullptr;
    if (job.contributions != nullptr) {
      float* sum = fits ? kept : job.means + p.begin;
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
    // (The sum of squares of a mean is wanted without the residual.)
    const bool stays = fits && (source != kept || job.error == nullptr);
    if (stays) {
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < p.m; i += kBlock)
        kept[i] = residual != nullptr ? source[i] + residual[i] : source[i];
      __syncthreads();
    }
    const auto value = [&](std::int64_t i) {
      if (stays) return kept[i];
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

unsigned blocks(const Launch& launch) {
  return static_cast<unsigned>(launch.buckets < (1 << 20) ? launch.buckets : 1 << 20);
}

void encode(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  if (launch.buckets == 0) return;
  const TopkLaunch own{launch, options_of<TopkOptions>(options)};
  LPSGD_LAUNCH(encode_topk_kernel, blocks(launch), kBlock, stream)(own);
}
void decode(const Launch& launch, const CodecOptions& options, bool adds, cudaStream_t stream) {
  if (launch.buckets == 0) return;
  const TopkLaunch own{launch, options_of<TopkOptions>(options)};
  const auto kernel = adds ? decode_topk_kernel<true> : decode_topk_kernel<false>;
  LPSGD_LAUNCH(kernel, blocks(launch), kBlock, stream)(own);
}

}  // namespace

CodecKernels topk_kernels() {
  return {.encode = encode, .decode = decode, .unit = CodecKernels::Unit::bucket};
}

}  // namespace lpsgd::cuda
