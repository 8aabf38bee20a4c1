// What the codecs' kernels share. Lane j of a warp has values 8j .. 8j+7 of a tile of 256, read 16 bytes at a
// time; eight values use one Philox counter and 8*bits bits of codes. Internal to quant/cuda.
#pragma once

#include "core/cuda/launch.h"
#include "quant/cuda/codec_kernels.h"

namespace lpsgd::cuda {
namespace {

constexpr int kWarp = 32, kWarps = 4;  // per block
constexpr unsigned kThreads = kWarp * kWarps;
constexpr int kEach = 8;  // values of a lane
constexpr int kTile = kWarp * kEach;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kTeamThreads = kWarp * (kept_values / team_values);
static_assert(kTile == tile_values);

__device__ __forceinline__ int lane_number() {
  return static_cast<int>(threadIdx.x % kWarp);
}
LPSGD_HD std::int64_t min_of(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
template <class T>
__device__ __forceinline__ bool aligned(const T* p, std::size_t bytes) {
  return reinterpret_cast<std::size_t>(p) % bytes == 0;
}

// ---- Memory: 16 bytes at a time where address and length allow

/// Eight values at p, of which `left` exist; the others become +0. `whole`: all exist, and p is aligned.
template <bool whole = false>
__device__ __forceinline__ void load_values(const float* p, int left, float* v) {
  if (whole || (left >= kEach && aligned(p, 16))) {
    const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else {
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = k < left ? p[k] : 0.0f;
  }
}
template <bool whole = false>
__device__ __forceinline__ void store_values(float* p, int left, const float* v) {
  if (whole || (left >= kEach && aligned(p, 16))) {
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
  } else {
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (k < left) p[k] = v[k];
  }
}
/// 32-bit words at any even address: the table of 2-bit optimal levels has two bytes, and a pack can have
/// 16-bit values before them. Reads up to two bytes before the words and after them (encoding_room()).
/// `is_aligned`: the address is a multiple of four.
template <bool is_aligned>
class WordsAt {
 public:
  __device__ __forceinline__ explicit WordsAt(const std::byte* first) {
    const std::uintptr_t past = is_aligned ? 0 : reinterpret_cast<std::uintptr_t>(first) % 4;
    aligned_ = reinterpret_cast<const std::uint32_t*>(first - past);
    shift_ = static_cast<unsigned>(past) * 8;
  }
  __device__ __forceinline__ std::uint32_t operator[](int i) const {
    if constexpr (is_aligned) return aligned_[i];
    const std::uint32_t low = aligned_[i], high = shift_ != 0 ? aligned_[i + 1] : 0;
    return __funnelshift_r(low, high, shift_);
  }
  /// The words from word i on.
  __device__ __forceinline__ WordsAt from(std::int64_t i) const {
    WordsAt later = *this;
    later.aligned_ += i;
    return later;
  }

 private:
  const std::uint32_t* aligned_;
  unsigned shift_;
};
using Words = WordsAt<false>;
__device__ __forceinline__ std::uint32_t load_word(const std::byte* p) {
  return Words(p)[0];
}
template <bool whole = false>
__device__ __forceinline__ void store_word(std::byte* p, std::uint32_t word) {
  if (whole || aligned(p, 4)) {
    *reinterpret_cast<std::uint32_t*>(p) = word;
  } else {
    auto* halves = reinterpret_cast<std::uint16_t*>(p);
    halves[0] = static_cast<std::uint16_t>(word);
    halves[1] = static_cast<std::uint16_t>(word >> 16);
  }
}
__device__ __forceinline__ float as_float(std::uint32_t word) {
  return ScalarLanes::value(static_cast<std::int32_t>(word));
}
__device__ __forceinline__ float load_float(const std::byte* p) {
  return as_float(load_word(p));
}
template <bool whole = false>
__device__ __forceinline__ void store_float(std::byte* p, float x) {
  store_word<whole>(p, static_cast<std::uint32_t>(ScalarLanes::bits(x)));
}

// ---- Over the lanes of a group of `width`, a power of two up to the warp

__device__ __forceinline__ std::int32_t max_of(std::int32_t x, int width) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (width == kWarp) return __reduce_max_sync(kAll, x);
#endif
  for (int h = width / 2; h > 0; h /= 2) {
    const std::int32_t other = __shfl_xor_sync(kAll, x, h);
    x = other > x ? other : x;
  }
  return x;
}
template <class T>
__device__ __forceinline__ T sum_of(T x, int width) {
  for (int h = width / 2; h > 0; h /= 2) x += __shfl_xor_sync(kAll, x, h);
  return x;
}

/// Adds to two sums of squares those of a lane's values and of their errors, of which `left`, up to eight,
/// exist.
__device__ __forceinline__ void add_squares(const float* values, const float* errors, int left, double& own,
                                            double& lost) {
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (k >= left) continue;
    own += static_cast<double>(values[k]) * static_cast<double>(values[k]);
    lost += static_cast<double>(errors[k]) * static_cast<double>(errors[k]);
  }
}

/// Adds the warp's sums of squares to a job's two. All lanes call it.
__device__ __forceinline__ void add_error(double* error, double own, double lost) {
  own = sum_of(own, kWarp);
  lost = sum_of(lost, kWarp);
  if (lane_number() == 0) {
    atomicAdd(error, own);
    atomicAdd(error + 1, lost);
  }
}

// ---- Jobs

/// The arguments of a kernel whose codec has options.
template <class Options>
struct LaunchOf : Launch {
  Options options;
};

/// The launch's job that contains piece or bucket `number`; before(job) is the job's first.
template <class Before>
__device__ __forceinline__ std::int32_t find_job(const Launch& launch, std::int64_t number, Before before) {
  std::int32_t low = launch.job_first, high = launch.job_last - 1;
  while (low < high) {
    const std::int32_t middle = (low + high + 1) / 2;
    if (before(launch.jobs[middle]) <= number)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// The launch's job that has this piece of the batch.
__device__ __forceinline__ std::int32_t find_job_of_piece(const Launch& launch, std::int64_t piece) {
  return find_job(launch, piece, [](const Job& job) { return job.pieces_before; });
}

/// Distributes numbers [first, first + total) over the grid's warps.
template <class Body>
__device__ __forceinline__ void each_warp(std::int64_t first, std::int64_t total, Body body) {
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < total;
       i += warps)
    body(first + i);
}

/// Of Unit::tile: calls body(job, at, left) for each lane's values at .. at + 7, of which `left`, up to
/// eight, exist. All lanes of a warp call it.
template <class Body>
__device__ __forceinline__ void each_eight(const Launch& launch, Body body) {
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Job& job = launch.jobs[find_job_of_piece(launch, piece)];
    const std::int64_t at = (piece - job.pieces_before) * kTile + lane_number() * kEach;
    body(job, at, static_cast<int>(min_of(job.n - at, kEach)));
  });
}

inline unsigned blocks_for(std::int64_t warps) {
  const std::int64_t blocks = (warps + kWarps - 1) / kWarps, max = 1 << 16;
  return static_cast<unsigned>(blocks < max ? blocks : max);
}

}  // namespace
}  // namespace lpsgd::cuda
