// Sums of columns. The threads of a block sum their rows, and combine the sums in shared memory. A second
// launch combines the sums of the blocks. Several rows are added in float32, and those sums in double.
//
// Memory moved per value of b bytes: b, in loads of 16 bytes where channels allow, of several rows at a time.
// Partial sums are 8 bytes for each channel and part.
#include <algorithm>

#include "nn/cuda/row_sums_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int rows_at_once = 8;

template <class T, int V>
__global__ void __launch_bounds__(block_threads, 2) partial_sums(const T* x, Cut cut, double* partials) {
  __shared__ double shared[sums_of_block<V, double>];
  const RowRange range(cut, V);
  double sum[V] = {};
  if (range.active)
    over_rows<rows_at_once>(range, cut, [&]<int rows>(std::int64_t r) {
      float v[rows][V], few[V] = {};
#pragma unroll
      for (int u = 0; u < rows; ++u) load<V>(x + (r + u * cut.ty) * cut.channels + range.channel, v[u]);
#pragma unroll
      for (int u = 0; u < rows; ++u) {
#pragma unroll
        for (int k = 0; k < V; ++k) few[k] += v[u][k];
      }
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] += static_cast<double>(few[k]);
    });
  const double total = sum_over_block<V>([&](int k) { return sum[k]; }, cut, shared, range.thread);
  const TileChannel channel(cut, V, range.thread);
  if (channel.writes) partials[place_of(static_cast<int>(blockIdx.y), cut.channels, channel.number)] = total;
}

constexpr int join_columns = 32;

__global__ void join_sums(const double* partials, int parts, int channels, float* sums, float* second) {
  __shared__ double shared[block_threads];
  const int thread = static_cast<int>(threadIdx.x), heights = block_threads / join_columns;
  const int c = static_cast<int>(blockIdx.x) * join_columns + thread % join_columns;
  double total = 0;
  if (c < channels)
    over_parts(
        parts, thread / join_columns, heights, [&](int p) { return partials[place_of(p, channels, c)]; },
        [&](int, double part) { total += part; });
  total = sum_over_heights(total, join_columns, heights, shared, thread);
  if (thread >= join_columns || c >= channels) return;
  sums[c] = static_cast<float>(total);
  if (second != nullptr) second[c] = static_cast<float>(total);
}

}  // namespace

Cut cut_rows(DataType type, std::int64_t rows, std::int64_t channels, int max_pack) {
  // As many blocks as a large GPU runs at once, two on each of 132 multiprocessors; few enough parts for the
  // block that combines them; tiles whose rows are lines of 128 bytes.
  constexpr std::int64_t blocks_wanted = 264, max_parts = 256;
  const std::int64_t max_columns = 128 / size_of(type);
  Cut cut;
  cut.rows = rows;
  cut.channels = static_cast<int>(channels);
  const auto divides = [&](int pack) { return pack <= max_pack && channels % pack == 0; };
  cut.pack = type == DataType::bf16 && divides(8) ? 8 : divides(4) ? 4 : 1;
  const std::int64_t packs = channels / cut.pack;
  while (cut.tx < packs && cut.tx * cut.pack < max_columns) cut.tx *= 2;
  cut.ty = block_threads / cut.tx;
  cut.tiles = static_cast<int>((packs + cut.tx - 1) / cut.tx);
  const std::int64_t most = std::clamp<std::int64_t>(blocks_wanted / cut.tiles, 1, max_parts);
  const std::int64_t rows_of_block = std::int64_t{rows_at_once} * cut.ty;
  const std::int64_t parts = std::clamp<std::int64_t>((rows + rows_of_block - 1) / rows_of_block, 1, most);
  cut.rows_each = (rows + parts - 1) / parts;
  cut.parts = static_cast<int>((rows + cut.rows_each - 1) / cut.rows_each);
  return cut;
}

cudaError_t launch_column_sums(DataType type, const void* x, const Cut& cut, double* partials, float* sums,
                               float* second, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(cut.tiles), static_cast<unsigned>(cut.parts));
  const dim3 threads(static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty));
  return with_type(type, [&]<class T>(T) {
    const T* const values = static_cast<const T*>(x);
    if constexpr (pack_of<T> == 8)
      if (cut.pack == 8) LPSGD_LAUNCH((partial_sums<T, 8>), blocks, threads, stream)(values, cut, partials);
    if (cut.pack == 4) LPSGD_LAUNCH((partial_sums<T, 4>), blocks, threads, stream)(values, cut, partials);
    if (cut.pack == 1) LPSGD_LAUNCH((partial_sums<T, 1>), blocks, threads, stream)(values, cut, partials);
    LPSGD_LAUNCH(join_sums, static_cast<unsigned>((cut.channels + join_columns - 1) / join_columns),
                 block_threads, stream)
    (partials, cut.parts, cut.channels, sums, second);
  });
}

}  // namespace lpsgd::cuda
