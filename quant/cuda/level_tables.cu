// Where qsgd's optimal levels lie: quant/level_table.cc's choice on the device, one block a table. The
// dynamic programme is the plain one, every candidate in turn; of equal costs the smallest level before, as
// there.
#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int kPoints = LevelTable::cells + 1;
constexpr int kChoosers = 288;  // threads: at least one a point
constexpr int kMostIntervals = 127;

__global__ void __launch_bounds__(kChoosers) choose_kernel(Launch launch) {
  __shared__ long long count[kPoints], first[kPoints], second[kPoints];  // the counts' moments, summed up
  __shared__ long long best[2][kPoints];
  __shared__ std::uint8_t from[kMostIntervals + 1][kPoints];
  __shared__ std::int32_t chosen[kMostIntervals + 1];
  DeviceTable& table = launch.tables[blockIdx.x];
  const unsigned long long* counts = launch.counts + LevelTable::cells * static_cast<std::size_t>(blockIdx.x);
  const int b = static_cast<int>(threadIdx.x);
  const int intervals = qsgd_levels(launch.qsgd.bits);

  if (b == 0) {
    count[0] = first[0] = second[0] = 0;
    for (int c = 0; c < LevelTable::cells; ++c) {
      const long long x = 2 * c + 1, n = static_cast<long long>(counts[c]);
      count[c + 1] = count[c] + n;
      first[c + 1] = first[c] + n * x;
      second[c + 1] = second[c] + n * x * x;
    }
  }
  __syncthreads();
  // Of a level at `lo` and the next at `hi`, both in 1/256.
  const auto cost = [&](int lo, int hi) {
    const long long l = 2 * lo, h = 2 * hi;
    return (l + h) * (first[hi] - first[lo]) - l * h * (count[hi] - count[lo]) - (second[hi] - second[lo]);
  };
  if (b >= 1 && b < kPoints) {
    best[1][b] = cost(0, b);
    from[1][b] = 0;
  }
  __syncthreads();
  for (int k = 2; k <= intervals; ++k) {
    const long long* above = best[(k - 1) % 2];
    if (b >= k && b <= kPoints - 1 - (intervals - k)) {
      long long least = above[k - 1] + cost(k - 1, b);
      int at = k - 1;
      for (int a = k; a < b; ++a) {
        const long long total = above[a] + cost(a, b);
        if (total < least) {
          least = total;
          at = a;
        }
      }
      best[k % 2][b] = least;
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

cudaError_t choose_level_tables(const Launch& launch, std::int32_t tables, cudaStream_t stream) {
  LPSGD_LAUNCH(choose_kernel, static_cast<unsigned>(tables), kChoosers, stream)(launch);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
