// Products of two arrays, and of an image's pixels with a gate that has one value for each channel. A thread
// keeps the gate of its V channels, and takes every so many pixels of one sample.
//
// Memory moved per value of b bytes, in loads and stores of 16 bytes where channels allow:
//   forward   2 b (x, y); the gate once for each block, from cache. Two arrays of one shape: 3 b
//   backward  3 b (g, x, dx). Two arrays of one shape: 5 b
#include <algorithm>

#include "nn/cuda/row_sums_device.h"

namespace lpsgd::cuda {
namespace {

template <class T>
__global__ void product_kernel(const T* x, const T* factor, T* y, std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float v[V], f[V];
    load<V>(x + i, v);
    load<V>(factor + i, f);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] *= f[k];
    store<V>(y + i, v);
  });
}

template <class T>
__global__ void product_gradient_kernel(const T* g, const T* x, const T* factor, T* dx, T* dfactor,
                                        std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float v[V], a[V], b[V];
    load<V>(g + i, v);
    load<V>(x + i, a);
    load<V>(factor + i, b);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      a[k] *= v[k];
      b[k] *= v[k];
    }
    if (dx != nullptr) store<V>(dx + i, b);
    if (dfactor != nullptr) store<V>(dfactor + i, a);
  });
}

/// The blocks of a grid's row are parts of the pixels, for each tile of channels.
template <int V, class T>
__global__ void gate_kernel(GateShape s, Cut cut, const T* x, const T* gate, T* y) {
  const int tile = static_cast<int>(blockIdx.x) % cut.tiles, part = static_cast<int>(blockIdx.x) / cut.tiles;
  const int parts = static_cast<int>(gridDim.x) / cut.tiles;
  const int channel = (tile * cut.tx + static_cast<int>(threadIdx.x)) * V;
  if (channel >= cut.channels) return;
  const std::int64_t first = part * cut.ty + static_cast<int>(threadIdx.y), step = parts * cut.ty;
  for (std::int64_t n = blockIdx.y; n < s.batch; n += gridDim.y) {
    float f[V];
    load<V>(gate + n * s.channels + channel, f);
    for (std::int64_t p = first; p < s.pixels; p += step) {
      const std::int64_t at = (n * s.pixels + p) * s.channels + channel;
      float v[V];
      load<V>(x + at, v);
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] *= f[k];
      store<V>(y + at, v);
    }
  }
}

/// A block has all pixels of its samples, so that the sums over them need no other block.
template <int V, class T>
__global__ void __launch_bounds__(block_threads)
    gate_gradient_kernel(GateShape s, Cut cut, const T* g, const T* x, const T* gate, T* dx, T* dgate) {
  __shared__ float shared[sums_of_block<V, float>];
  const RowRange range(cut, V);
  const TileChannel channel(cut, V, range.thread);
  for (std::int64_t n = blockIdx.y; n < s.batch; n += gridDim.y) {
    float sum[V] = {}, f[V] = {};
    if (range.active) {
      load<V>(gate + n * s.channels + range.channel, f);
      for (std::int64_t p = threadIdx.y; p < s.pixels; p += cut.ty) {
        const std::int64_t at = (n * s.pixels + p) * s.channels + range.channel;
        float v[V], of_x[V];
        load<V>(g + at, v);
        load<V>(x + at, of_x);
#pragma unroll
        for (int k = 0; k < V; ++k) {
          sum[k] += v[k] * of_x[k];
          v[k] *= f[k];
        }
        if (dx != nullptr) store<V>(dx + at, v);
      }
    }
    const float total = sum_over_block<V>([&](int k) { return sum[k]; }, cut, shared, range.thread);
    if (dgate != nullptr && channel.writes) dgate[n * s.channels + channel.number] = from_float<T>(total);
  }
}

constexpr std::int64_t most_samples = 4096;  // of a grid's second dimension; blocks loop over the rest

Cut cut_of(DataType type, const GateShape& shape) {
  return cut_rows(type, shape.pixels, shape.channels);
}

/// Calls body<V>() with the channels that a thread of the cut takes.
template <class T, class Body>
void with_cut(const Cut& cut, const Body& body) {
  if constexpr (pack_of<T> == 8)
    if (cut.pack == 8) body.template operator()<8>();
  if (cut.pack == 4) body.template operator()<4>();
  if (cut.pack == 1) body.template operator()<1>();
}

unsigned samples_of(const GateShape& shape) {
  return static_cast<unsigned>(shape.batch < most_samples ? shape.batch : most_samples);
}

}  // namespace

cudaError_t launch_multiply(DataType type, const GateShape& shape, const void* x, const void* gate, void* y,
                            cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    const auto* const in = static_cast<const T*>(x);
    const auto* const factors = static_cast<const T*>(gate);
    if (shape.pixels == 1) {
      const std::int64_t n = shape.batch * shape.channels;
      LPSGD_LAUNCH(product_kernel<T>, blocks_for(n / pack_of<T>), block_threads, stream)
      (in, factors, static_cast<T*>(y), n);
      return;
    }
    const Cut cut = cut_of(type, shape);
    constexpr std::int64_t pixels_each = 4;  // of a thread, if there are many
    const std::int64_t parts = (shape.pixels + pixels_each * cut.ty - 1) / (pixels_each * cut.ty);
    const dim3 blocks(static_cast<unsigned>(cut.tiles * std::min<std::int64_t>(parts, 256)),
                      samples_of(shape));
    const dim3 threads(static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty));
    with_cut<T>(cut, [&]<int V>() {
      LPSGD_LAUNCH((gate_kernel<V, T>), blocks, threads, stream)(shape, cut, in, factors, static_cast<T*>(y));
    });
  });
}

cudaError_t launch_multiply_gradient(DataType type, const GateShape& shape, const void* g, const void* x,
                                     const void* gate, void* dx, void* dgate, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    const auto* const gradient = static_cast<const T*>(g);
    const auto* const in = static_cast<const T*>(x);
    const auto* const factors = static_cast<const T*>(gate);
    auto* const of_in = static_cast<T*>(dx);
    auto* const of_factors = static_cast<T*>(dgate);
    if (shape.pixels == 1) {
      const std::int64_t n = shape.batch * shape.channels;
      LPSGD_LAUNCH(product_gradient_kernel<T>, blocks_for(n / pack_of<T>), block_threads, stream)
      (gradient, in, factors, of_in, of_factors, n);
      return;
    }
    const Cut cut = cut_of(type, shape);
    const dim3 blocks(static_cast<unsigned>(cut.tiles), samples_of(shape));
    const dim3 threads(static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty));
    with_cut<T>(cut, [&]<int V>() {
      LPSGD_LAUNCH((gate_gradient_kernel<V, T>), blocks, threads, stream)
      (shape, cut, gradient, in, factors, of_in, of_factors);
    });
  });
}

}  // namespace lpsgd::cuda
