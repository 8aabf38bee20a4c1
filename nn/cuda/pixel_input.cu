// Images from bytes to the network's input: crop, mirror and scale in one pass. A block takes rows of
// samples; its threads take 16 bytes of a row's values, so that reads and writes of neighbours are
// neighbours.
//
// Memory moved per value of b bytes: 1 + b. Writes are of 16 bytes except at the ends of rows that are not
// aligned; bytes are read singly, because a crop begins anywhere, but a warp's lie side by side.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int bytes_values = 256, shared_channels = 4;

/// `channels` is a constant where that makes the division fast; 0: s.channels.
template <class T, int channels>
__global__ void __launch_bounds__(block_threads)
    pixel_kernel(const std::uint8_t* pixels, const PixelCrop* crops, const T* table, T* out, PixelSizes s) {
  __shared__ T shared[shared_channels * bytes_values];
  const int c = channels > 0 ? channels : s.channels;
  const T* scaled = table;
  if (c <= shared_channels) {
    const int lane = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (int i = lane; i < c * bytes_values; i += static_cast<int>(blockDim.x * blockDim.y))
      shared[i] = table[i];
    __syncthreads();
    scaled = shared;
  }
  const std::int64_t rows = s.batch * s.height;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += static_cast<std::int64_t>(gridDim.x) * blockDim.y) {
    const std::int64_t n = row / s.height;
    const PixelCrop crop = crops[n];
    const std::int64_t from = row - n * s.height + crop.down;
    const bool row_inside = from >= 0 && from < s.stored_height;
    const std::uint8_t* in = pixels + (n * s.stored_height + (row_inside ? from : 0)) * s.stored_width * c;
    constexpr int V = pack_of<T>;
    const int values = s.width * c,
              skew = static_cast<int>(row * values % V);  // the first pack begins before
    T* const to = out + row * values;
    for (int i = static_cast<int>(threadIdx.x) * V - skew; i < values;
         i += static_cast<int>(blockDim.x) * V) {
      float v[V];
      int x = (i < 0 ? 0 : i) / c, channel = (i < 0 ? 0 : i) % c;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if (i + k < 0 || i + k >= values) continue;
        const std::int64_t column =
            static_cast<std::int64_t>(crop.mirrored ? s.width - 1 - x : x) + crop.across;
        const bool inside = row_inside && column >= 0 && column < s.stored_width;
        v[k] = as_float(scaled[channel * bytes_values + (inside ? in[column * c + channel] : 0)]);
        if (++channel == c) channel = 0, ++x;
      }
      if (i >= 0 && i + V <= values) {
        store<V>(to + i, v);
        continue;
      }
#pragma unroll
      for (int k = 0; k < V; ++k)
        if (i + k >= 0 && i + k < values) to[i + k] = from_float<T>(v[k]);
    }
  }
}

}  // namespace

cudaError_t launch_pixels(DataType type, const std::uint8_t* pixels, const PixelCrop* crops,
                          const void* table, void* out, const PixelSizes& s, cudaStream_t stream) {
  const int packs = static_cast<int>(s.width * s.channels * size_of(type) / 16) + 1;
  const int across = packs >= block_threads ? block_threads : (packs + 31) / 32 * 32;
  const dim3 threads(static_cast<unsigned>(across), static_cast<unsigned>(block_threads / across));
  constexpr std::int64_t max_blocks = 2048;
  const std::int64_t blocks = (s.batch * s.height + threads.y - 1) / threads.y;
  const auto launched = static_cast<unsigned>(blocks < max_blocks ? blocks : max_blocks);
  return with_type(type, [&]<class T>(T) {
    const auto launch = [&](void (*kernel)(const std::uint8_t*, const PixelCrop*, const T*, T*, PixelSizes)) {
      LPSGD_LAUNCH(kernel, launched, threads, stream)
      (pixels, crops, static_cast<const T*>(table), static_cast<T*>(out), s);
    };
    if (s.channels == 3)
      launch(pixel_kernel<T, 3>);
    else if (s.channels == 1)
      launch(pixel_kernel<T, 1>);
    else
      launch(pixel_kernel<T, 0>);
  });
}

}  // namespace lpsgd::cuda
