// qsgd (quant/codecs/qsgd.cc) on the device. Optimal levels: kernels count the histograms and choose the
// levels before encoding, without the host.
//
// Memory moved per value by optimal levels, beside encode's (scaled_device.h): counting reads the source
// once, 4 bytes, 4 more with a residual, of means ranks (b/8 + 4/m); encode then reads it again. Buckets over
// 8192 values are scanned once for both. Choosing reads 2 KiB of counts and writes 4 KiB of tables for each
// tensor. Launches, beside encode's: clearing the counts, one for each kind of bucket, choosing.
#include <limits>

#include "quant/cuda/scaled_device.h"
#include "quant/level_table.h"

namespace lpsgd::cuda {
namespace {

template <int width, QsgdOptions::Levels levels>
struct DeviceRule : QsgdRule<ScalarLanes, width, levels> {
  using Base = QsgdRule<ScalarLanes, width, levels>;
  static constexpr bool shuffles = Base::table_bytes > 0 && width <= 4;
  static constexpr bool has_levels = Base::has_levels && !shuffles;
  const std::byte* bytes;  // of the table before the records that are decoded; nullptr: they are encoded
  std::uint32_t cells = 0;
  float lower = 0, width_of = 1, inverse = 1;
  __device__ DeviceRule(const QsgdOptions&, const DeviceTable* table, const std::byte* encoding)
      : Base(table != nullptr ? &table->levels : nullptr), bytes(encoding) {
    if (!shuffles || bytes != nullptr || table == nullptr) return;
    cells = table->cells[lane_number()];
    lower = table->lower[lane_number()];
    width_of = table->width[lane_number()];
    inverse = table->inverse[lane_number()];
  }
  /// All lanes of the warp call it.
  __device__ std::int32_t code(float v, std::int32_t half) const {
    if constexpr (!shuffles) {
      return Base::code(v, half);
    } else {
      // optimal_level(), with the tables in the warp's lanes. The quotient as Divider's.
      const float y = this->by_norm(magnitude<ScalarLanes>(v));
      const std::int32_t cell = level_cell<ScalarLanes>(y);
      const auto low = static_cast<std::int32_t>(__shfl_sync(kAll, cells, cell / 8) >> (cell % 8 * 4) & 15u);
      const float x = y - __shfl_sync(kAll, lower, low), by = __shfl_sync(kAll, inverse, low);
      const float near = x * by;
      const float fraction =
          ScalarLanes::fma(ScalarLanes::fma(near, -__shfl_sync(kAll, width_of, low), x), by, near);
      return with_sign<ScalarLanes>(v, low + dithers_up<ScalarLanes>(half, fraction), width);
    }
  }
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

/// Counts a warp's magnitudes for the optimal levels of their tables, in a histogram of its own, which is
/// added to launch.counts[256 * table] when the table changes; at the end the block adds one for all warps.
template <class Rule>
class Counts {
 public:
  static constexpr int words = LevelTable::cells;
  static constexpr std::int64_t max_blocks = 1024;  // each adds to the same words
  class Bucket {
   public:
    __device__ Bucket(Counts& counts, std::int64_t m, Scales s)
        : histogram_(counts.histogram_),
          counts_(m > 0 && is_finite(s.a) && s.a != 0.0f),
          by_norm_(qsgd_divisor(s.a)) {}
    __device__ __forceinline__ void code(const float* v, int, int left) {
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (counts_ && k < left)
          atomicAdd(&histogram_[level_cell<ScalarLanes>(by_norm_(magnitude<ScalarLanes>(v[k])))], 1u);
    }

   private:
    std::uint32_t* histogram_;
    const bool counts_;
    const Divider<ScalarLanes> by_norm_;
  };

  __device__ Counts(const LaunchFor<Rule>& launch, std::uint32_t* words_of_block)
      : launch_(launch),
        all_(words_of_block),
        histogram_(words_of_block + threadIdx.x / kWarp * LevelTable::cells) {
    for (int i = lane_number(); i < LevelTable::cells; i += kWarp) histogram_[i] = 0;
    __syncwarp();
  }
  template <class E>
  __device__ Bucket with(const E& extent, Scales scales, bool, float*) {
    // (A 32-bit count holds 2^18 buckets of kept_values.)
    if (extent.job.table_number != table_ || counted_ > 1 << 17) flush();
    table_ = extent.job.table_number;
    ++counted_;
    return Bucket(*this, extent.m, scales);
  }
  __device__ void finish() {
    __shared__ std::int32_t tables[kTeamThreads / kWarp];
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    if (lane_number() == 0) tables[threadIdx.x / kWarp] = table_;
    __syncthreads();
    // One addition for the warps whose last table is this one, by the first of them.
    for (int w = 0; w < static_cast<int>(threadIdx.x / kWarp); ++w)
      if (tables[w] == table_) return;
    if (table_ < 0) return;
    for (int i = lane_number(); i < LevelTable::cells; i += kWarp) {
      unsigned long long sum = 0;
      for (int w = 0; w < warps; ++w)
        if (tables[w] == table_) sum += all_[w * LevelTable::cells + i];
      if (sum > 0) atomicAdd(launch_.counts + LevelTable::cells * table_ + i, sum);
    }
  }

 private:
  __device__ void flush() {
    __syncwarp();
    for (int i = lane_number(); i < LevelTable::cells; i += kWarp) {
      if (histogram_[i] > 0) atomicAdd(launch_.counts + LevelTable::cells * table_ + i, histogram_[i]);
      histogram_[i] = 0;
    }
    __syncwarp();
    counted_ = 0;
  }

  const LaunchFor<Rule>& launch_;
  std::uint32_t* all_;
  std::uint32_t* histogram_;
  std::int32_t table_ = -1;  // whose histogram it is
  std::int32_t counted_ = 0;
};

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
  int j = 0;  // of cell b: the last level but one's number, or the last's that is not above b
  if (b < LevelTable::cells) {
    for (int step = (kMaxIntervals + 1) / 2; step > 0; step /= 2)
      if (j + step < intervals && chosen[j + step] <= b) j += step;
    table.levels.low[b] = static_cast<float>(j);
    table.levels.lower[b] = level(j);
    table.levels.width[b] = level(j + 1) - level(j);
  }
  if (launch.options.bits > 4) return;
  // Lane b/8 of a warp gets cells b .. b + 7.
  std::uint32_t cells = static_cast<std::uint32_t>(j) << (b % 8 * 4);
  for (int h = 1; h < 8; h *= 2) cells |= __shfl_xor_sync(kAll, cells, h);
  if (b < LevelTable::cells && b % 8 == 0) table.cells[b / 8] = cells;
  if (b >= kWarp) return;
  const float width = b < intervals ? level(b + 1) - level(b) : 1.0f;
  table.lower[b] = b < intervals ? level(b) : 0.0f;
  table.width[b] = width;
  table.inverse[b] = 1.0f / width;
}

template <class Rule, Source source>
void encode_by_tables(const LaunchFor<Rule>& launch, cudaStream_t stream) {
  cudaMemsetAsync(launch.counts, 0,
                  static_cast<std::size_t>(launch.table_count) * LevelTable::cells * sizeof(*launch.counts),
                  stream);
  scan_large<Rule, source>(launch, stream);
  use_buckets<Rule, source, Counts<Rule>>(launch, stream);
  LPSGD_LAUNCH(choose_kernel, static_cast<unsigned>(launch.table_count), kChoosers, stream)(launch);
  encode_scanned<Rule, source>(launch, stream);
}

template <class Rule>
void encode_with(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  if constexpr (Rule::table_bytes > 0) {
    if (launch.pieces == 0) return;
    const LaunchFor<Rule> all{launch, options_of<QsgdOptions>(options)};
    (launch.ranks > 0 ? encode_by_tables<Rule, Source::mean> : encode_by_tables<Rule, Source::own>)(all,
                                                                                                    stream);
  } else {
    encode_scaled<Rule>(launch, options, stream);
  }
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
  return {.encode = encode, .decode = decode, .whole_bucket = small_values};
}

}  // namespace lpsgd::cuda
