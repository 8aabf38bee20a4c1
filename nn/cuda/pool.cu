// Max and average pooling in NHWC. A block computes rows of output pixels, a thread V channels of one pixel
// at a time; in backward, of one input pixel: it adds the gradients of the windows that hold it, in order. So
// no two threads add to the same value.
//
// Memory moved per value of b bytes, with V = 8 in loads and stores of 16 bytes, windows that overlap from
// cache:
//   forward   b of the input; per output value b, and 2 for the maximum's place if there will be a backward
//   backward  b of the input's gradient; per output value b, and 2 for the maximum's place
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

/// A window: its first row and column, which may lie in the border, and its part inside the input.
struct Window {
  int top, left;
  int h0, h1, w0, w1;
  __device__ Window(const PoolShape& s, int oh, int ow)
      : top(oh * s.stride_h - s.pad_h),
        left(ow * s.stride_w - s.pad_w),
        h0(max(top, 0)),
        h1(min(top + s.kernel_h, s.h)),
        w0(max(left, 0)),
        w1(min(left + s.kernel_w, s.w)) {}
  /// A window counts its border, but not what hangs over the border in ceil mode.
  __device__ float divisor(const PoolShape& s) const {
    return static_cast<float>(s.count_pad ? (min(top + s.kernel_h, s.h + s.pad_h) - top) *
                                                (min(left + s.kernel_w, s.w + s.pad_w) - left)
                                          : (h1 - h0) * (w1 - w0));
  }
};

/// Calls body(image, row, column, channel) for every pixel of `height` rows of `width` and every V channels.
template <int V, class Body>
__device__ __forceinline__ void each_pixel(const PoolShape& s, int height, int width, const Body& body) {
  const auto packs = static_cast<unsigned>(s.channels / V);
  const unsigned in_row = static_cast<unsigned>(width) * packs;
  const auto rows = static_cast<unsigned>(s.batch) * static_cast<unsigned>(height);
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    const unsigned n = row / static_cast<unsigned>(height);
    for (unsigned i = threadIdx.x; i < in_row; i += blockDim.x)
      body(static_cast<std::int64_t>(n), static_cast<int>(row - n * static_cast<unsigned>(height)),
           static_cast<int>(i / packs), static_cast<int>(i % packs) * V);
  }
}

template <int V, bool is_max, class T>
__global__ void __launch_bounds__(block_threads)
    pool_kernel(PoolShape s, const T* x, T* y, PoolPlace* place) {
  each_pixel<V>(s, s.out_h, s.out_w, [&](std::int64_t n, int oh, int ow, int c) {
    const T* image = x + n * s.h * s.w * s.channels + c;
    const Window w(s, oh, ow);
    float out[V] = {};
    PoolPlace best[V] = {};
    bool first = true;
    for (int h = w.h0; h < w.h1; ++h) {
      for (int col = w.w0; col < w.w1; ++col) {
        float v[V];
        load<V>(image + static_cast<std::int64_t>(h * s.w + col) * s.channels, v);
        const auto at = static_cast<PoolPlace>((h - w.top) * s.kernel_w + (col - w.left));
#pragma unroll
        for (int k = 0; k < V; ++k) {
          if constexpr (is_max) {
            // The first among equals; the first NaN stays.
            if (first || !(v[k] <= out[k] || out[k] != out[k])) {
              out[k] = v[k];
              best[k] = at;
            }
          } else {
            out[k] += v[k];
          }
        }
        first = false;
      }
    }
    const std::int64_t to = ((n * s.out_h + oh) * s.out_w + ow) * s.channels + c;
    if constexpr (is_max) {
      if (place != nullptr) store_places<V>(place + to, best);
    } else {
      const float divisor = w.divisor(s);
#pragma unroll
      for (int k = 0; k < V; ++k) out[k] /= divisor;
    }
    store<V>(y + to, out);
  });
}

template <int V, bool is_max, class T>
__global__ void __launch_bounds__(block_threads, 4)
    pool_gradient_kernel(PoolShape s, const T* dy, const PoolPlace* place, T* dx) {
  each_pixel<V>(s, s.h, s.w, [&](std::int64_t n, int row, int col, int c) {
    // Windows oh with oh * stride - pad <= y < oh * stride - pad + kernel.
    const int y = row + s.pad_h, x = col + s.pad_w;
    const int oh0 = y < s.kernel_h ? 0 : (y - s.kernel_h) / s.stride_h + 1;
    const int ow0 = x < s.kernel_w ? 0 : (x - s.kernel_w) / s.stride_w + 1;
    const int oh1 = min(y / s.stride_h, s.out_h - 1), ow1 = min(x / s.stride_w, s.out_w - 1);
    float sum[V] = {};
    for (int oh = oh0; oh <= oh1; ++oh) {
      for (int ow = ow0; ow <= ow1; ++ow) {
        const std::int64_t at = ((n * s.out_h + oh) * s.out_w + ow) * s.channels + c;
        float g[V];
        load<V>(dy + at, g);
        if constexpr (is_max) {
          PoolPlace places[V];
          load_places<V>(place + at, places);
          const int here = (y - oh * s.stride_h) * s.kernel_w + (x - ow * s.stride_w);
#pragma unroll
          for (int k = 0; k < V; ++k) sum[k] += places[k] == here ? g[k] : 0.0f;
        } else {
          const float divisor = Window(s, oh, ow).divisor(s);
#pragma unroll
          for (int k = 0; k < V; ++k) sum[k] += g[k] / divisor;
        }
      }
    }
    store<V>(dx + ((n * s.h + row) * s.w + col) * s.channels + c, sum);
  });
}

unsigned row_blocks(std::int64_t rows) {
  return static_cast<unsigned>(rows < 1 ? 1 : rows < (1 << 16) ? rows : 1 << 16);
}

/// Calls body<V, is_max>(): V is 8 if the channels allow.
template <class Body>
void with_variant(const PoolShape& s, const Body& body) {
  if (s.channels % 8 == 0)
    s.max ? body.template operator()<8, true>() : body.template operator()<8, false>();
  else
    s.max ? body.template operator()<1, true>() : body.template operator()<1, false>();
}

}  // namespace

cudaError_t launch_pool(DataType type, const PoolShape& s, const void* x, void* y, PoolPlace* place,
                        cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_variant(s, [&]<int V, bool is_max>() {
      const auto kernel = pool_kernel<V, is_max, T>;
      LPSGD_LAUNCH(kernel, row_blocks(s.batch * s.out_h), block_threads, stream)
      (s, static_cast<const T*>(x), static_cast<T*>(y), place);
    });
  });
}

cudaError_t launch_pool_gradient(DataType type, const PoolShape& s, const void* dy, const PoolPlace* place,
                                 void* dx, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_variant(s, [&]<int V, bool is_max>() {
      const auto kernel = pool_gradient_kernel<V, is_max, T>;
      LPSGD_LAUNCH(kernel, row_blocks(s.batch * s.h), block_threads, stream)
      (s, static_cast<const T*>(dy), place, static_cast<T*>(dx));
    });
  });
}

}  // namespace lpsgd::cuda
