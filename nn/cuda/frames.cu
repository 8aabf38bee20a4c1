// What is added to the frames of a sequence, or put before them. Sums over the batch are those of
// column_sums.cu, and copies of frames are those of elementwise.cu.
//
// Memory moved per value of b bytes:
//   position         2 b (x, y) and 4 (table), in loads and stores of 16 bytes where a sample's size allows;
//   if
//                    there are enough blocks without, a thread reads the table once for several samples
//   token            b, and its gradient b, in single values of neighbouring threads
#include <algorithm>

#include "nn/cuda/row_sums_device.h"

namespace lpsgd::cuda {
namespace {

template <class T, int V>
__global__ void position_kernel(const T* x, const float* table, T* y, std::int64_t batch, std::int64_t size) {
  for (std::int64_t i = thread_number() * V; i < size; i += thread_count() * V) {
    float t[V];
    load<V>(table + i, t);
    for (std::int64_t n = blockIdx.y; n < batch; n += gridDim.y) {
      float v[V];
      load<V>(x + n * size + i, v);
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] += t[k];
      store<V>(y + n * size + i, v);
    }
  }
}

template <class T>
__global__ void token_kernel(const float* token, T* y, std::int64_t batch, std::int64_t stride,
                             std::int64_t width) {
  for (std::int64_t i = thread_number(); i < batch * width; i += thread_count())
    y[i / width * stride + i % width] = from_float<T>(token[i % width]);
}

constexpr int columns = 32;  // of a block

template <class T>
__global__ void __launch_bounds__(block_threads)
    token_gradient_kernel(const T* dy, float* gradient, std::int64_t batch, std::int64_t stride,
                          std::int64_t width) {
  __shared__ double shared[block_threads];
  const int thread = static_cast<int>(threadIdx.x), heights = block_threads / columns;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * columns + thread % columns;
  double sum = 0;
  if (c < width) {
#pragma unroll 8
    for (std::int64_t n = thread / columns; n < batch; n += heights)
      sum += static_cast<double>(as_float(dy[n * stride + c]));
  }
  sum = sum_over_heights(sum, columns, heights, shared, thread);
  if (thread < columns && c < width) gradient[c] = static_cast<float>(sum);
}

}  // namespace

cudaError_t launch_position(DataType type, const void* x, const float* table, void* y, std::int64_t batch,
                            std::int64_t size, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    const auto with = [&]<int V>() {
      // Few samples for each thread, if that many blocks are needed to fill a GPU.
      constexpr std::int64_t blocks_wanted = 2048;
      const std::int64_t across = blocks_for(size / V);
      const std::int64_t parts = std::clamp<std::int64_t>(blocks_wanted / across, 1, batch);
      const dim3 blocks(static_cast<unsigned>(across), static_cast<unsigned>(parts));
      LPSGD_LAUNCH((position_kernel<T, V>), blocks, block_threads, stream)
      (static_cast<const T*>(x), table, static_cast<T*>(y), batch, size);
    };
    if (size % pack_of<T> == 0)
      with.template operator()<pack_of<T>>();
    else
      with.template operator()<1>();
  });
}

cudaError_t launch_token(DataType type, const float* token, void* y, std::int64_t batch, std::int64_t stride,
                         std::int64_t width, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(token_kernel<T>, blocks_for(batch * width), block_threads, stream)
    (token, static_cast<T*>(y), batch, stride, width);
  });
}

cudaError_t launch_token_gradient(DataType type, const void* dy, float* gradient, std::int64_t batch,
                                  std::int64_t stride, std::int64_t width, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(token_gradient_kernel<T>, static_cast<unsigned>((width + columns - 1) / columns),
                 block_threads, stream)
    (static_cast<const T*>(dy), gradient, batch, stride, width);
  });
}

}  // namespace lpsgd::cuda
