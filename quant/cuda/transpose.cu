// Transposing batches of matrices, 32 x 32 values at a time: memory order to the order of `bucket: column`
// and back.
//
// Memory moved per value: 8 bytes, one read and one write, in single values of 32 neighbours: rows may begin
// anywhere.
#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int kRows = 8;  // of a block's threads

__global__ void __launch_bounds__(kWarp* kRows, 4) transpose_kernel(Transpositions all) {
  __shared__ float tile[transposed_tile][transposed_tile + 1];
  const int x = lane_number(), y0 = static_cast<int>(threadIdx.x) / kWarp;
  for (std::int64_t t = blockIdx.x; t < all.tiles; t += gridDim.x) {
    int j = 0;
    while (j + 1 < all.count && all.jobs[j + 1].tiles_before <= t) ++j;
    const Transpositions::One& job = all.jobs[j];
    const std::int64_t across = (job.columns + transposed_tile - 1) / transposed_tile;
    const std::int64_t down = (job.rows + transposed_tile - 1) / transposed_tile;
    const std::int64_t in_job = t - job.tiles_before, matrix = in_job / (across * down);
    const std::int64_t row = in_job / across % down * transposed_tile,
                       column = in_job % across * transposed_tile;
    const float* from = job.from + matrix * job.rows * job.columns;
    float* to = job.to + matrix * job.rows * job.columns;
    for (int y = y0; y < transposed_tile; y += kRows)
      if (row + y < job.rows && column + x < job.columns)
        tile[y][x] = from[(row + y) * job.columns + column + x];
    __syncthreads();
    for (int y = y0; y < transposed_tile; y += kRows)
      if (column + y < job.columns && row + x < job.rows) to[(column + y) * job.rows + row + x] = tile[x][y];
    __syncthreads();
  }
}

}  // namespace

void transpose(const Transpositions& jobs, cudaStream_t stream) {
  if (jobs.tiles == 0) return;
  const auto blocks = static_cast<unsigned>(jobs.tiles < (1 << 16) ? jobs.tiles : 1 << 16);
  LPSGD_LAUNCH(transpose_kernel, blocks, kWarp * kRows, stream)(jobs);
}

}  // namespace lpsgd::cuda
