// qsgd (quant/codecs/qsgd.cc) on the device. Optimal levels: kernels count the histograms and choose the
// levels before encoding, without the host.
//
// Memory moved per value by optimal levels, beside encode's (scaled_device.h): count reads the source, 4
// bytes, 4 more with a residual, of means ranks (b/8 + 4/m); twice in buckets over 512 values, the second
// time from cache up to 4096. choose reads 2 KiB of counts and writes a table for each tensor.
#include <limits>

#include "quant/cuda/scaled_device.h"
#include "quant/level_table.h"

namespace lpsgd::cuda {
namespace {

template <int width, QsgdOptions::Levels levels>
struct DeviceRule : QsgdRule<ScalarLanes, width, levels> {
  using Base = QsgdRule<ScalarLanes, width, levels>;
  const std::byte* bytes;  // of the table before the records that are decoded; nullptr: they are encoded
  __device__ DeviceRule(const QsgdOptions&, const LevelTable* table, const std::byte* encoding)
      : Base(table), bytes(encoding) {}
  __device__ float value(std::int32_t code) const {
    if constexpr (Base::table_bytes > 0) {
      const std::int32_t level = code & qsgd_levels(width);
      if (bytes != nullptr)
        return qsgd_scaled<ScalarLanes>(
            level == qsgd_levels(width)
                ? 1.0f
                : static_cast<float>(static_cast<std::uint8_t>(bytes[level])) * 0x1p-8f,
            code, this->norm, width);
    }
    return Base::value(code);
  }
};

/// Histograms of qsgd's magnitudes, for its optimal levels, added to launch.counts[256 * table].
template <class Rule, Source source>
__global__ void __launch_bounds__(kThreads, 6) count_kernel(LaunchOf<QsgdOptions> launch) {
  __shared__ __align__(16) float tiles[kWarps][kTile];
  __shared__ std::uint32_t histograms[kWarps][LevelTable::cells];
  float* tile = tiles[threadIdx.x / kWarp];
  std::uint32_t* histogram = histograms[threadIdx.x / kWarp];
  const int lane = lane_number();
  std::int32_t table = -1;  // whose histogram it is
  const auto flush = [&] {
    __syncwarp();
    for (int i = lane; i < LevelTable::cells; i += kWarp) {
      if (table >= 0 && histogram[i] > 0)
        atomicAdd(launch.counts + LevelTable::cells * table + i, histogram[i]);
      histogram[i] = 0;
    }
    __syncwarp();
  };
  flush();
  std::int64_t counted = 0;
  each_warp(launch.piece_first, launch.pieces, [&](std::int64_t piece) {
    const Extent extent = find_piece<Rule>(launch, piece);
    if (extent.job.table_number != table || counted > (1 << 30)) {
      flush();
      table = extent.job.table_number;
      counted = 0;
    }
    counted += piece_values;
    Scales s{};
    if (extent.whole()) {
      const PieceScan scan = scan_piece<Rule, source>(launch, extent, tile);
      s = scales_of<Rule>(launch, scan, scan.positive, extent.m);
    } else {
      s = launch.scales[extent.bucket_number];
    }
    const Divider<ScalarLanes> by_norm(qsgd_divisor(s.a));
    each_tile(extent, [&](std::int64_t at) {
      float v[kEach];
      load_source<Rule, source>(launch, extent, extent.from + at, extent.count - at, v);
      for (int k = 0; k < kEach; ++k)
        if (at + k < extent.count && is_finite(s.a) && s.a != 0.0f)
          atomicAdd(&histogram[level_cell<ScalarLanes>(by_norm(magnitude<ScalarLanes>(v[k])))], 1u);
    });
  });
  flush();
}

constexpr int kPoints = IntervalCost::points;
constexpr int kChoosers = 512;  // threads: at least one a point
constexpr int kAnchors = kChoosers / kWarp;
constexpr int kMaxIntervals = 127;

/// Of the levels `first`, first + step, ... up to `last`, the best before b: of equal costs the first.
struct Choice {
  std::int64_t cost = std::numeric_limits<std::int64_t>::max();
  std::int32_t from = kPoints;
  __device__ __forceinline__ void consider(std::int64_t other_cost, std::int32_t other) {
    if (other_cost > cost || (other_cost == cost && other >= from)) return;
    cost = other_cost;
    from = other;
  }
};
__device__ __forceinline__ Choice best_before(int b, int first, int last, int step, const IntervalCost& cost,
                                              const std::int64_t* above) {
  Choice choice;
  for (int a = first; a <= last; a += step) choice.consider(above[a] + cost(a, b), a);
  return choice;
}

/// IntervalCost::sum_up by the whole block, a cell a thread.
__device__ __forceinline__ void sum_up(const unsigned long long* counts, IntervalCost& cost) {
  __shared__ std::int64_t warps[kAnchors][3];
  const int c = static_cast<int>(threadIdx.x), lane = lane_number();
  const std::int64_t n = c < LevelTable::cells ? static_cast<std::int64_t>(counts[c]) : 0, x = 2 * c + 1;
  std::int64_t sums[3] = {n, n * x, n * x * x};
  for (int h = 1; h < kWarp; h *= 2)
    for (std::int64_t& sum : sums) {
      const std::int64_t before = __shfl_sync(kAll, sum, lane >= h ? lane - h : lane);
      if (lane >= h) sum += before;
    }
  if (lane == kWarp - 1)
    for (int i = 0; i < 3; ++i) warps[c / kWarp][i] = sums[i];
  __syncthreads();
  for (int w = 0; w < c / kWarp; ++w)
    for (int i = 0; i < 3; ++i) sums[i] += warps[w][i];
  if (c == 0) cost.count[0] = cost.first[0] = cost.second[0] = 0;
  if (c >= LevelTable::cells) return;
  cost.count[c + 1] = sums[0];
  cost.first[c + 1] = sums[1];
  cost.second[c + 1] = sums[2];
}

/// Chooses the levels as quant/level_table.cc does, one block a table, from launch.counts: of equal costs the
/// smallest previous level. The best previous level grows with b (there), so the points between two anchors
/// need only the levels between the anchors' choices. A warp finds an anchor's choice, then a thread that of
/// each other point: about 25 costs one after the other, not 256.
__global__ void __launch_bounds__(kChoosers) choose_kernel(LaunchOf<QsgdOptions> launch) {
  __shared__ IntervalCost cost;
  __shared__ std::int64_t min_cost[2][kPoints];
  __shared__ std::uint8_t from[kMaxIntervals + 1][kPoints];
  __shared__ std::int32_t chosen[kMaxIntervals + 1];
  DeviceTable& table = launch.tables[blockIdx.x];
  const unsigned long long* counts = launch.counts + LevelTable::cells * static_cast<std::size_t>(blockIdx.x);
  const int b = static_cast<int>(threadIdx.x), warp = b / kWarp, lane = lane_number();
  const int intervals = qsgd_levels(launch.options.bits);

  sum_up(counts, cost);
  __syncthreads();
  if (b >= 1 && b < kPoints) {
    min_cost[1][b] = cost(0, b);
    from[1][b] = 0;
  }
  __syncthreads();
  for (int k = 2; k <= intervals; ++k) {
    const std::int64_t* above = min_cost[(k - 1) % 2];
    const int last_point = kPoints - 1 - (intervals - k);
    const int apart = (last_point - k) / kAnchors + 1;  // anchors: k, k + apart, ...
    const auto put = [&](int point, Choice choice) {
      min_cost[k % 2][point] = choice.cost;
      from[k][point] = static_cast<std::uint8_t>(choice.from);
    };
    const int anchor = k + warp * apart;
    if (anchor <= last_point) {
      Choice choice = best_before(anchor, k - 1 + lane, anchor - 1, kWarp, cost, above);
      for (int h = kWarp / 2; h > 0; h /= 2) {
        const std::int64_t other = __shfl_xor_sync(kAll, choice.cost, h);
        choice.consider(other, __shfl_xor_sync(kAll, choice.from, h));
      }
      if (lane == 0) put(anchor, choice);
    }
    __syncthreads();
    if (b >= k && b <= last_point && (b - k) % apart != 0) {
      const int before = b - (b - k) % apart, after = before + apart;
      const int last = after <= last_point && from[k][after] < b ? from[k][after] : b - 1;
      put(b, best_before(b, from[k][before], last, 1, cost, above));
    }
    __syncthreads();
  }
  if (b == 0) {
    chosen[intervals] = kPoints - 1;
    for (int k = intervals; k > 0; --k) chosen[k - 1] = from[k][chosen[k]];
  }
  __syncthreads();

  const auto level = [&](int j) { return static_cast<float>(chosen[j]) * 0x1p-8f; };
  if (b <= intervals) {
    table.bytes[b] = static_cast<std::uint8_t>(b == intervals ? 255 : chosen[b]);
    table.levels.level[b] = level(b);
  }
  if (b < LevelTable::cells) {
    int j = 0;  // the last level but one's, or the last that is not above b
    for (int step = (kMaxIntervals + 1) / 2; step > 0; step /= 2)
      if (j + step < intervals && chosen[j + step] <= b) j += step;
    table.levels.low[b] = static_cast<float>(j);
    table.levels.lower[b] = level(j);
    table.levels.width[b] = level(j + 1) - level(j);
  }
}

template <class Rule, Source source>
void make_tables(const LaunchOf<QsgdOptions>& launch, cudaStream_t stream) {
  cudaMemsetAsync(launch.counts, 0,
                  static_cast<std::size_t>(launch.table_count) * LevelTable::cells * sizeof(*launch.counts),
                  stream);
  if (launch.large) scan_buckets<Rule, source>(launch, stream);
  const auto count = count_kernel<Rule, source>;
  LPSGD_LAUNCH(count, blocks_for(launch.pieces), kThreads, stream)(launch);
  LPSGD_LAUNCH(choose_kernel, static_cast<unsigned>(launch.table_count), kChoosers, stream)(launch);
}

template <class Rule>
void encode_with(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  if (launch.pieces == 0) return;
  if constexpr (Rule::table_bytes > 0) {
    const LaunchOf<QsgdOptions> all{launch, options_of<QsgdOptions>(options)};
    (launch.ranks > 0 ? make_tables<Rule, Source::mean> : make_tables<Rule, Source::own>)(all, stream);
  }
  encode_scaled<Rule>(launch, options, stream);
}

void encode(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  with_qsgd_rule(options_of<QsgdOptions>(options), [&]<int width, QsgdOptions::Levels levels>() {
    encode_with<DeviceRule<width, levels>>(launch, options, stream);
  });
}
void decode(const Launch& launch, const CodecOptions& options, bool adds, cudaStream_t stream) {
  with_qsgd_rule(options_of<QsgdOptions>(options), [&]<int width, QsgdOptions::Levels levels>() {
    decode_scaled<DeviceRule<width, levels>>(launch, options, adds, stream);
  });
}

}  // namespace

CodecKernels qsgd_kernels() {
  return {.encode = encode, .decode = decode};
}

}  // namespace lpsgd::cuda
