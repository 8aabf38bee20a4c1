// Where qsgd's optimal levels lie: quant/level_table.cc's choice on the device, one block a table. The
// dynamic programme is the plain one, every candidate in turn; of equal costs the smallest level before, as
// there.
#include "quant/cuda/warp_device.h"
#include "quant/level_table.h"

namespace lpsgd::cuda {
namespace {

constexpr int kPoints = IntervalCost::points;
constexpr int kChoosers = 288;  // threads: at least one a point
constexpr int kMaxIntervals = 127;

__global__ void __launch_bounds__(kChoosers) choose_kernel(Launch launch, int bits) {
  __shared__ IntervalCost cost;
  __shared__ std::int64_t min_cost[2][kPoints];
  __shared__ std::uint8_t from[kMaxIntervals + 1][kPoints];
  __shared__ std::int32_t chosen[kMaxIntervals + 1];
  DeviceTable& table = launch.tables[blockIdx.x];
  const unsigned long long* counts = launch.counts + LevelTable::cells * static_cast<std::size_t>(blockIdx.x);
  const int b = static_cast<int>(threadIdx.x);
  const int intervals = qsgd_levels(bits);

  if (b == 0) cost.sum_up(counts);
  __syncthreads();
  if (b >= 1 && b < kPoints) {
    min_cost[1][b] = cost(0, b);
    from[1][b] = 0;
  }
  __syncthreads();
  for (int k = 2; k <= intervals; ++k) {
    const std::int64_t* above = min_cost[(k - 1) % 2];
    if (b >= k && b <= kPoints - 1 - (intervals - k)) {
      std::int64_t min = above[k - 1] + cost(k - 1, b);
      int at = k - 1;
      for (int a = k; a < b; ++a) {
        const std::int64_t total = above[a] + cost(a, b);
        if (total < min) {
          min = total;
          at = a;
        }
      }
      min_cost[k % 2][b] = min;
      from[k][b] = static_cast<std::uint8_t>(at);
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
    int j = 0;
    while (j + 1 < intervals && chosen[j + 1] <= b) ++j;
    table.levels.low[b] = static_cast<float>(j);
    table.levels.lower[b] = level(j);
    table.levels.width[b] = level(j + 1) - level(j);
  }
}

}  // namespace

void choose_level_tables(const Launch& launch, int bits, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(launch.table_count);
  LPSGD_LAUNCH(choose_kernel, blocks, kChoosers, stream)(launch, bits);
}

}  // namespace lpsgd::cuda
