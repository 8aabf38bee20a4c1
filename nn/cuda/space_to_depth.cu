// Space to depth: images and filters into blocks of pixels, and filters' gradients back.
//
// Memory moved per value of b bytes in blocks: b written, 16 bytes at a time, and b read, value by value from
// cache: neighbours of a row lie side by side. Where a block is filled up with zeros or lies outside, only
// written. Filters are few: a value at a time.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int V = 8;

/// A block of threads takes rows of blocks, a thread V channels of one block at a time.
template <class T>
__global__ void __launch_bounds__(block_threads) space_to_depth_kernel(BlockShape s, const T* x, T* blocks) {
  const auto packs = static_cast<unsigned>(s.channels / V);
  const unsigned in_row = static_cast<unsigned>(s.columns) * packs;
  const int block_row = s.stride_w * s.c, image_row = s.w * s.c;  // values of a row
  const auto rows = static_cast<unsigned>(s.batch) * static_cast<unsigned>(s.rows);
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    const unsigned n = row / static_cast<unsigned>(s.rows);
    const int top = static_cast<int>(row - n * static_cast<unsigned>(s.rows)) * s.stride_h - s.pad_h;
    const T* image = x + static_cast<std::int64_t>(n) * s.h * image_row;
    T* to = blocks + static_cast<std::int64_t>(row) * in_row * V;
    for (unsigned i = threadIdx.x; i < in_row; i += blockDim.x) {
      const unsigned column = i / packs, first = (i - column * packs) * V;
      // The block's first value of a row, counted from the image's first.
      const int left = (static_cast<int>(column) * s.stride_w - s.pad_w) * s.c;
      int r = static_cast<int>(first) / block_row, k = static_cast<int>(first) - r * block_row;
      float v[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int h = top + r, at = left + k;
        const bool exists = r < s.stride_h && h >= 0 && h < s.h && at >= 0 && at < image_row;
        v[j] = exists ? as_float(image[h * image_row + at]) : 0.0f;
        if (++k == block_row) k = 0, ++r;
      }
      store<V>(to + i * V, v);
    }
  }
}

/// Where a value of a filter in blocks lies in the filter; -1: nowhere.
__device__ __forceinline__ std::int64_t place_in_filter(const BlockShape& s, std::int64_t i) {
  const int block_row = s.stride_w * s.c;
  const int q = static_cast<int>(i % s.channels);
  const std::int64_t block = i / s.channels;
  const int a = static_cast<int>(block / s.window_w % s.window_h), b = static_cast<int>(block % s.window_w);
  const std::int64_t f = block / s.window_w / s.window_h;
  const int h = a * s.stride_h + q / block_row, at = b * block_row + q % block_row;
  if (q >= s.stride_h * block_row || h >= s.kernel_h || at >= s.kernel_w * s.c) return -1;
  return (f * s.kernel_h + h) * s.kernel_w * s.c + at;
}

__host__ __device__ __forceinline__ std::int64_t filter_values(const BlockShape& s) {
  return s.filters * s.window_h * s.window_w * s.channels;
}

/// Each value of the filters is in one place of the blocks.
template <class T, bool back>
__global__ void __launch_bounds__(block_threads) filters_kernel(BlockShape s, const T* from, T* to) {
  for (std::int64_t i = thread_number(); i < filter_values(s); i += thread_count()) {
    const std::int64_t at = place_in_filter(s, i);
    if constexpr (back) {
      if (at >= 0) to[at] = from[i];
    } else {
      to[i] = at >= 0 ? from[at] : from_float<T>(0);
    }
  }
}

template <bool back>
cudaError_t launch_filters(DataType type, const BlockShape& s, const void* from, void* to,
                           cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH((filters_kernel<T, back>), blocks_for(filter_values(s)), block_threads, stream)
    (s, static_cast<const T*>(from), static_cast<T*>(to));
  });
}

}  // namespace

cudaError_t launch_space_to_depth(DataType type, const BlockShape& s, const void* x, void* blocks,
                                  cudaStream_t stream) {
  const std::int64_t rows = s.batch * s.rows, most = 1 << 16;
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(space_to_depth_kernel<T>, static_cast<unsigned>(rows < most ? rows : most), block_threads,
                 stream)
    (s, static_cast<const T*>(x), static_cast<T*>(blocks));
  });
}

cudaError_t launch_filters_to_blocks(DataType type, const BlockShape& s, const void* filters, void* blocks,
                                     cudaStream_t stream) {
  return launch_filters<false>(type, s, filters, blocks, stream);
}

cudaError_t launch_filters_from_blocks(DataType type, const BlockShape& s, const void* blocks, void* filters,
                                       cudaStream_t stream) {
  return launch_filters<true>(type, s, blocks, filters, stream);
}

}  // namespace lpsgd::cuda
