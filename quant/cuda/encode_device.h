// Encoding codecs that are a rule (quant/scaled_rule_device.h). Internal to quant.
//
// A bucket's values are read once where it has at most 8192: a warp keeps up to 512 in registers, a team of
// warps up to 8192 in shared memory. Larger buckets are read twice. One kernel scans their pieces, and the
// warp that scans a bucket's last piece joins the pieces' scans; the next kernel codes the pieces, the last
// one first, since the L2 cache still holds what was read last.
#pragma once

#include "quant/cuda/encoder_device.h"
#include "quant/cuda/scan_device.h"

namespace lpsgd::cuda {
namespace {

// ---- Kernels. A kernel's use of values whose scale is known: Use(launch, words), with `words` of shared
// memory for each warp, made once a warp; with(extent, scales, first, tile) for each bucket or piece returns
// what has code(), as Encoder does; finish() is called by all threads of the block. A grid has at most
// max_blocks blocks.

template <class Rule>
struct Encodes {
  static constexpr int words = 0;
  static constexpr std::int64_t max_blocks = 1 << 16;
  __device__ Encodes(const LaunchFor<Rule>& launch, std::uint32_t*) : launch_(launch) {
    if constexpr (Rule::dithered) step_ = launch.step_at != nullptr ? *launch.step_at : launch.context.step;
  }
  template <class E>
  __device__ __forceinline__ Encoder<Rule, E> with(const E& extent, Scales scales, bool first,
                                                   float* tile) const {
    return Encoder<Rule, E>(launch_, extent, step_, scales, first, tile);
  }
  __device__ void finish() {}

 private:
  const LaunchFor<Rule>& launch_;
  std::uint32_t step_ = 0;
};

/// Calls body(offset in the piece) for every tile of the piece; all lanes the same number of times.
template <class Body>
__device__ __forceinline__ void each_tile(const Extent& extent, Body body) {
  const int step = extent.width * kEach;
  for (int at = 0; at < extent.trip; at += step) body(at + extent.lane() * kEach);
}
/// The same after load(offset, v) of `at_once` tiles, so that their loads overlap: body(offset, v), v being
/// the lane's eight values.
template <int at_once, class Load, class Body>
__device__ __forceinline__ void each_loaded_tile(const Extent& extent, Load load, Body body) {
  const int step = extent.width * kEach, mine = extent.lane() * kEach;
  for (int first = 0; first < extent.trip; first += at_once * step) {
    float v[at_once][kEach];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (first + i * step < extent.trip) load(first + i * step + mine, v + i);
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (first + i * step < extent.trip) body(first + i * step + mine, v[i]);
  }
}
/// Of means few tiles are loaded at once: their contributions take registers.
template <Source source, int of_own>
constexpr int tiles_at_once = source == Source::own ? of_own : 1;

/// Words of shared memory, at least one.
template <class Use, int warps>
constexpr int shared_words = Use::words > 0 ? warps* Use::words : 1;

/// A bucket of up to small_values in a warp's registers, `tiles` tiles.
template <class Rule, int tiles, class Use, class E>
__device__ __forceinline__ void use_bucket(const LaunchFor<Rule>& launch, const E& extent, float (*v)[kEach],
                                           Use& use, float* tile) {
  const int mine = extent.lane() * kEach;
  Scanner<Rule> scanner(scale_by<Rule>(launch.options), extent.width, tile);
#pragma unroll
  for (int t = 0; t < tiles; ++t)
    if (t * kTile < extent.trip) scanner.add(v[t], extent.count - t * kTile - mine);
  const PieceScan scan = scanner.finish();
  auto coder = use.with(extent, scales_of<Rule>(launch, scan, scan.positive, extent.m), true, tile);
#pragma unroll
  for (int t = 0; t < tiles; ++t)
    if (t * kTile < extent.trip) coder.code(v[t], t * kTile + mine, extent.count - t * kTile - mine);
}

/// The lanes of a whole bucket that has code of its own: that of the codec's default.
template <class Rule>
constexpr int whole_lanes = Rule::scales[0] == Scale::sides ? 8 : kWarp;

template <class Rule>
constexpr std::int64_t whole_bucket = WholeExtent<whole_lanes<Rule>>::count;

/// Whole pieces. While a warp codes one of its own values, it loads the next one.
template <class Rule, Source source, class Use>
__device__ __forceinline__ void use_whole(const LaunchFor<Rule>& launch, Use& use, float* tile,
                                          unsigned blocks) {
  using Whole = WholeExtent<whole_lanes<Rule>>;
  constexpr int tiles = Whole::tiles;
  const int mine = Whole::lane() * kEach;
  const unsigned stride = blocks * kWarps;
  std::int64_t piece = blockIdx.x * kWarps + threadIdx.x / kWarp;
  while (piece < launch.small.whole) {
    const Job job = launch.jobs[find_job(launch, piece, [](const Job& of) { return of.small.whole_before; })];
    const auto count = static_cast<std::uint32_t>(job.small.whole);
    auto i = static_cast<std::uint32_t>(piece - job.small.whole_before);
    const auto extent_of = [&](std::uint32_t number) {
      return whole_piece<Rule, Whole::width>(launch, job, number);
    };
    // Of the next piece; the residual only where registers allow.
    constexpr bool residual_ahead = tiles == 1;
    float values[tiles][kEach], residual[tiles][kEach];
    const auto load_ahead = [&](std::uint32_t number) {
      const Whole extent = extent_of(number);
      load_tiles<tiles>(extent, job.values, mine, values);
      if (residual_ahead && job.residual != nullptr) load_tiles<tiles>(extent, job.residual, mine, residual);
    };
    if constexpr (source == Source::own) load_ahead(i);
    for (; i < count; i += stride) {
      const Whole extent = extent_of(i);
      float v[tiles][kEach];
      if constexpr (source == Source::own) {
#pragma unroll
        for (int t = 0; t < tiles; ++t)
#pragma unroll
          for (int k = 0; k < kEach; ++k) v[t][k] = values[t][k];
        if (!residual_ahead && job.residual != nullptr)
          load_tiles<tiles>(extent, job.residual, mine, residual);
        if (residual_ahead && job.residual != nullptr) add_tiles<tiles>(extent, residual, v);
        load_ahead(i + stride < count ? i + stride : i);
        if (!residual_ahead && job.residual != nullptr) add_tiles<tiles>(extent, residual, v);
      } else {
        load_source<Rule, source, tiles>(launch, extent, mine, v);
      }
      use_bucket<Rule, tiles>(launch, extent, v, use, tile);
    }
    piece = job.small.whole_before + i;
  }
}

/// Buckets of up to small_values, each in one warp's registers. The first `whole_blocks` blocks have the
/// whole pieces.
template <class Rule, Source source, class Use>
__global__ void __launch_bounds__(kThreads, source == Source::own && Rule::table_bytes == 0 ? 5 : 4)
    small_kernel(LaunchFor<Rule> launch, unsigned whole_blocks) {
  __shared__ __align__(16) float tiles[kWarps][kTile];
  __shared__ std::uint32_t words[shared_words<Use, kWarps>];
  float* tile = tiles[threadIdx.x / kWarp];
  Use use(launch, words);
  if (blockIdx.x < whole_blocks) {
    use_whole<Rule, source>(launch, use, tile, whole_blocks);
  } else {
    const std::int64_t warps = static_cast<std::int64_t>(gridDim.x - whole_blocks) * kWarps;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x - whole_blocks) * kWarps + threadIdx.x / kWarp;
         i < launch.small.rest; i += warps) {
      const std::int32_t j = find_job(launch, i, [](const Job& job) { return job.small.rest_before; });
      const Job& job = launch.jobs[j];
      const Extent extent =
          find_small<Rule>(launch, j, job.pieces_before + job.small.whole + i - job.small.rest_before);
      constexpr int kept = small_values / kTile;
      float v[kept][kEach];
      load_source<Rule, source, kept>(launch, extent, extent.lane() * kEach, v);
      use_bucket<Rule, kept>(launch, extent, v, use, tile);
    }
  }
  use.finish();
}

/// Blocks of a multiprocessor that the registers allow.
template <class Rule, Source source>
constexpr int kept_blocks =
    source == Source::own && Rule::table_bytes == 0 && !Rule::divides && Rule::scales[0] != Scale::sides ? 3
                                                                                                         : 2;

/// A block's share of the buckets of up to kept_values, each in the shared memory of a team of
/// launch.team_warps warps: the whole ones or the others, block `block` of `blocks`.
template <bool whole, class Rule, Source source, class Use>
__device__ __forceinline__ void use_kept(const LaunchFor<Rule>& launch, Use& use, float (*tiles)[kTile],
                                         PieceScan* scans, unsigned block, unsigned blocks) {
  constexpr int block_tiles = FixedOrderSum::block / kTile;
  const std::int64_t total = whole ? launch.kept.whole : launch.kept.rest;
  const int warps = launch.team_warps, teams = kTeamThreads / kWarp / warps;
  const int warp = static_cast<int>(threadIdx.x / kWarp), team = warp / warps, in_team = warp % warps;
  float(*mine)[kTile] = tiles + team * warps * (team_values / kTile);
  // All teams of a block do as many rounds, since barriers are the block's.
  for (std::int64_t at = static_cast<std::int64_t>(block) * teams; at < total;
       at += static_cast<std::int64_t>(blocks) * teams) {
    const bool exists = at + team < total;
    const std::int64_t number = exists ? at + team : at;
    const auto find = [&] {  // twice, as registers are scarce
      const auto before = [](const Job& job) { return whole ? job.kept.whole_before : job.kept.rest_before; };
      const std::int32_t j = find_job(launch, number, before);
      const Job& job = launch.jobs[j];
      const auto i = static_cast<std::uint32_t>(number - before(job));
      if constexpr (whole)
        return whole_bucket_of<Rule>(launch, job, i);
      else
        return find_bucket<Rule>(launch, j, static_cast<std::uint32_t>(job.kept.whole) + i);
    };
    int m = 0, count = 0;
    Scanner<Rule> scanner(scale_by<Rule>(launch.options), kWarp, nullptr);
    if (exists) {
      const auto extent = find();
      m = static_cast<int>(extent.m);
      count = (m + kTile - 1) / kTile;
      constexpr int at_once = source == Source::own ? 2 : 1;  // tiles whose loads overlap
      for (int t = in_team; t < count; t += at_once * warps) {
        float v[at_once][kEach];
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          const int value = (t + i * warps) * kTile + lane_number() * kEach;
          if (t + i * warps < count) load_source<Rule, source, 1>(launch, extent, value, v + i);
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          const int value = (t + i * warps) * kTile + lane_number() * kEach;
          if (t + i * warps >= count) continue;
          store_values<true>(mine[t + i * warps] + lane_number() * kEach, kEach, v[i]);
          scanner.add_unordered(v[i], whole ? kEach : m - value);
        }
      }
    }
    __syncthreads();
    // A warp adds each block of the fixed-order sum.
    const int rest = m - in_team * static_cast<int>(FixedOrderSum::block);
    if (rest > 0)
      scanner.add_rows(mine[in_team * block_tiles], rest < FixedOrderSum::block
                                                        ? (rest + kWarp - 1) / kWarp
                                                        : static_cast<int>(FixedOrderSum::block) / kWarp);
    const PieceScan own = scanner.finish();
    if (lane_number() == 0) scans[warp] = own;
    __syncthreads();
    PieceScan scan = scans[team * warps];
    for (int w = 1; w < warps; ++w) {
      const PieceScan other = scans[team * warps + w];
      scan.max = other.max > scan.max ? other.max : scan.max;
      scan.positive += other.positive;
      for (int side = 0; side < 2; ++side) scan.sum[side] += other.sum[side];
    }
    if (!exists) continue;
    const auto extent = find();
    auto coder =
        use.with(extent, scales_of<Rule>(launch, scan, scan.positive, extent.m), in_team == 0, mine[in_team]);
    for (int t = in_team; t < count; t += warps) {
      const int value = t * kTile + lane_number() * kEach;
      float v[kEach];
      load_values<true>(mine[t] + lane_number() * kEach, kEach, v);
      __syncwarp();  // the coder uses mine[in_team], which its warp alone has read by now
      coder.code(v, value, m - value);
    }
  }
}

/// Constants that lanes read at places of their own: shared memory serves them faster than the cache, which
/// takes a line at a time.
template <class Constants>
struct SharedConstants {
  Constants value;
  __device__ const void* load(const void* from) {
    static_assert(sizeof(Constants) % sizeof(std::uint32_t) == 0);
    for (unsigned i = threadIdx.x; i < sizeof(Constants) / sizeof(std::uint32_t); i += blockDim.x)
      reinterpret_cast<std::uint32_t*>(&value)[i] = static_cast<const std::uint32_t*>(from)[i];
    __syncthreads();
    return &value;
  }
};
template <>
struct SharedConstants<void> {
  __device__ const void* load(const void* from) { return from; }
};

/// Buckets of up to kept_values. The first `whole_blocks` blocks have the whole ones.
template <class Rule, Source source, class Use>
__global__ void __launch_bounds__(kTeamThreads, kept_blocks<Rule, source>)
    kept_kernel(LaunchFor<Rule> launch, unsigned whole_blocks) {
  __shared__ __align__(16) float tiles[kept_values / kTile][kTile];
  __shared__ std::uint32_t words[shared_words<Use, kTeamThreads / kWarp>];
  __shared__ PieceScan scans[kTeamThreads / kWarp];
  __shared__ SharedConstants<typename Rule::Constants> constants;
  launch.constants = constants.load(launch.constants);
  Use use(launch, words);
  if (blockIdx.x < whole_blocks)
    use_kept<true, Rule, source>(launch, use, tiles, scans, blockIdx.x, whole_blocks);
  else
    use_kept<false, Rule, source>(launch, use, tiles, scans, blockIdx.x - whole_blocks,
                                  gridDim.x - whole_blocks);
  use.finish();
}

/// Scans the pieces of larger buckets. The warp that scans a bucket's last one joins the scans.
template <class Rule, Source source>
__global__ void __launch_bounds__(kThreads, 5) scan_kernel(LaunchFor<Rule> launch) {
  __shared__ __align__(16) float tiles[kWarps][kTile];
  float* tile = tiles[threadIdx.x / kWarp];
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Extent extent = find_piece<Rule>(launch, piece);
    if (extent.job.bucket <= kept_values) return;
    Scanner<Rule> scanner(scale_by<Rule>(launch.options), extent.width, tile);
    each_loaded_tile<tiles_at_once<source, Rule::scales[0] == Scale::sides ? 2 : 4>>(
        extent, [&](int at, float(*v)[kEach]) { load_source<Rule, source, 1>(launch, extent, at, v); },
        [&](int at, const float* v) { scanner.add(v, extent.count - at); });
    const PieceScan scan = scanner.finish();
    const std::int64_t pieces = (extent.m + piece_values - 1) / piece_values;
    int last = 0;
    if (lane_number() == 0) {
      launch.scans[piece] = scan;
      __threadfence();
      std::uint32_t& scanned = launch.scanned[extent.bucket_number];
      last = atomicAdd(&scanned, 1u) + 1 == pieces;
      if (last != 0) scanned = 0;  // for the next launch
      __threadfence();
    }
    if (__shfl_sync(kAll, last, 0) == 0) return;
    __syncwarp();
    std::int64_t positive = 0;
    const PieceScan whole = combine(launch.scans + piece - extent.from / piece_values, pieces, &positive);
    const Scales s = scales_of<Rule>(launch, whole, positive, extent.m);
    if (lane_number() == 0) launch.scales[extent.bucket_number] = s;
  });
}

/// Uses the pieces of larger buckets, the last ones first.
template <class Rule, Source source, class Use>
__global__ void __launch_bounds__(kThreads) piece_kernel(LaunchFor<Rule> launch) {
  __shared__ __align__(16) float tiles[kWarps][kTile];
  __shared__ std::uint32_t words[shared_words<Use, kWarps>];
  float* tile = tiles[threadIdx.x / kWarp];
  Use use(launch, words);
  each_warp(0, launch.pieces, [&](std::int64_t after) {
    const Extent extent = find_piece<Rule>(launch, launch.piece_first + launch.pieces - 1 - after);
    if (extent.job.bucket <= kept_values) return;
    auto coder = use.with(extent, launch.scales[extent.bucket_number], extent.from == 0, tile);
    each_loaded_tile<tiles_at_once<source, 2>>(
        extent, [&](int at, float(*v)[kEach]) { load_source<Rule, source, 1>(launch, extent, at, v); },
        [&](int at, float* v) { coder.code(v, at, extent.count - at); });
  });
  use.finish();
}

// ---- Launches

template <class Rule, Source source>
void scan_large(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  const auto kernel = scan_kernel<Rule, source>;
  if (launch.large) LPSGD_LAUNCH(kernel, blocks_for(launch.pieces), kThreads, stream)(launch);
}

/// After scan_large().
template <class Rule, Source source, class Use>
void use_buckets(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  const auto blocks = [](std::int64_t warps, int each) {
    return static_cast<unsigned>(min_of((warps + each - 1) / each, Use::max_blocks));
  };
  const auto small = small_kernel<Rule, source, Use>;
  const auto kept = kept_kernel<Rule, source, Use>;
  const auto large = piece_kernel<Rule, source, Use>;
  if (launch.small.whole + launch.small.rest > 0) {
    // So few for whole pieces that a warp has several, and so many that no multiprocessor waits long.
    const unsigned most = 16 * static_cast<unsigned>(launch.multiprocessors);
    const unsigned whole = min_of(blocks(launch.small.whole, kWarps), most);
    LPSGD_LAUNCH(small, whole + blocks(launch.small.rest, kWarps), kThreads, stream)(launch, whole);
  }
  if (launch.kept.whole + launch.kept.rest > 0) {
    const int teams = kTeamThreads / kWarp / launch.team_warps;
    const unsigned whole = blocks(launch.kept.whole, teams);
    LPSGD_LAUNCH(kept, whole + blocks(launch.kept.rest, teams), kTeamThreads, stream)(launch, whole);
  }
  if (launch.large) LPSGD_LAUNCH(large, blocks(launch.pieces, kWarps), kThreads, stream)(launch);
}

}  // namespace
}  // namespace lpsgd::cuda
