// Sums of columns. The threads of a block sum their rows, and combine the sums in shared memory. A second
// launch combines the sums of the blocks. Eight rows are added in float32, and those sums in double.
//
// Memory moved per value of b bytes: b, in loads of four values, of eight rows at a time. Partial sums are 8
// bytes for each channel and part.
#include <algorithm>

#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int unrolled = 8;

template <class T, int V>
__global__ void partial_sums(const T* x, Cut cut, double* partials) {
  __shared__ double shared[block_threads * V];
  const int c = (static_cast<int>(blockIdx.x) * cut.tx + static_cast<int>(threadIdx.x)) * V;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * cut.rows_each;
  const std::int64_t end = begin + cut.rows_each < cut.rows ? begin + cut.rows_each : cut.rows;
  double sum[V] = {};
  if (c < cut.channels) {
    for (std::int64_t r = begin + threadIdx.y; r < end; r += unrolled * cut.ty) {
      float few[V] = {};
#pragma unroll
      for (int u = 0; u < unrolled; ++u) {
        if (r + u * cut.ty >= end) break;
        float v[V];
        load<V>(x + (r + u * cut.ty) * cut.channels + c, v);
        for (int k = 0; k < V; ++k) few[k] += v[k];
      }
      for (int k = 0; k < V; ++k) sum[k] += static_cast<double>(few[k]);
    }
  }
  const int thread = static_cast<int>(threadIdx.y) * cut.tx + static_cast<int>(threadIdx.x);
  for (int k = 0; k < V; ++k) shared[thread * V + k] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0 || c >= cut.channels) return;
  for (int k = 0; k < V; ++k) {
    double total = 0;
    for (int y = 0; y < cut.ty; ++y) total += shared[(y * cut.tx + thread) * V + k];
    partials[static_cast<std::int64_t>(blockIdx.y) * cut.channels + c + k] = total;
  }
}

__global__ void join_sums(const double* partials, int parts, int channels, float* sums, float* second) {
  for (std::int64_t c = thread_number(); c < channels; c += thread_count()) {
    double total = 0;
    for (int p = 0; p < parts; ++p) total += partials[static_cast<std::int64_t>(p) * channels + c];
    sums[c] = static_cast<float>(total);
    if (second != nullptr) second[c] = static_cast<float>(total);
  }
}

}  // namespace

Cut cut_rows(std::int64_t rows, std::int64_t channels) {
  constexpr std::int64_t max_threads = 16, blocks_wanted = 256;  // enough blocks for any GPU's memory
  Cut cut;
  cut.rows = rows;
  cut.channels = static_cast<int>(channels);
  cut.pack = channels % 4 == 0 ? 4 : 1;
  const std::int64_t packs = channels / cut.pack;
  while (cut.tx < packs && cut.tx < max_threads) cut.tx *= 2;
  cut.ty = block_threads / cut.tx;
  cut.tiles = static_cast<int>((packs + cut.tx - 1) / cut.tx);
  const std::int64_t max_parts = std::max<std::int64_t>(1, blocks_wanted / cut.tiles);
  const std::int64_t useful = (rows + unrolled * cut.ty - 1) / (unrolled * cut.ty);
  const std::int64_t parts = std::clamp<std::int64_t>(useful, 1, max_parts);
  cut.rows_each = (rows + parts - 1) / parts;
  cut.parts = static_cast<int>((rows + cut.rows_each - 1) / cut.rows_each);
  return cut;
}

cudaError_t launch_column_sums(DataType type, const void* x, const Cut& cut, double* partials, float* sums,
                               float* second, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(cut.tiles), static_cast<unsigned>(cut.parts));
  const dim3 threads(static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty));
  return with_type(type, [&]<class T>(T) {
    if (cut.pack == 4)
      LPSGD_LAUNCH((partial_sums<T, 4>), blocks, threads, stream)(static_cast<const T*>(x), cut, partials);
    else
      LPSGD_LAUNCH((partial_sums<T, 1>), blocks, threads, stream)(static_cast<const T*>(x), cut, partials);
    LPSGD_LAUNCH(join_sums, blocks_for(cut.channels), block_threads, stream)
    (partials, cut.parts, cut.channels, sums, second);
  });
}

}  // namespace lpsgd::cuda
