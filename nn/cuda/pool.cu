// Max and average pooling in NHWC. A block computes rows of output pixels, a thread V channels of one pixel
// at a time; in backward, of one input pixel, or of 2 x 2 of them: it adds the gradients of the windows that
// hold it, in order. So no two threads add to the same value. Means over windows of many pixels have a kernel
// of their own.
//
// Memory moved per value of b bytes, with V = 8 in loads and stores of 16 bytes, windows that overlap from
// cache:
//   forward   b of the input; per output value b, and 2 for the maximum's place if there will be a backward
//   backward  b of the input's gradient; per output value b, and 2 for the maximum's place
#include <algorithm>
#include <limits>

#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

/// How many of a window's rows (or columns) a mean counts: with `border` those in the border, too, but not
/// what hangs over the border in ceil mode.
__device__ __forceinline__ int counted(int first, int kernel, int size, int pad, bool border) {
  return border ? min(first + kernel, size + pad) - first : min(first + kernel, size) - max(first, 0);
}
__device__ __forceinline__ int counted_rows(const PoolShape& s, int oh) {
  return counted(oh * s.stride_h - s.pad_h, s.kernel_h, s.h, s.pad_h, s.count_pad);
}
__device__ __forceinline__ int counted_columns(const PoolShape& s, int ow) {
  return counted(ow * s.stride_w - s.pad_w, s.kernel_w, s.w, s.pad_w, s.count_pad);
}

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
  __device__ bool is_empty() const { return h0 >= h1 || w0 >= w1; }
  __device__ int place(const PoolShape& s, int h, int col) const {
    return (h - top) * s.kernel_w + (col - left);
  }
};

/// x / divisor by its reciprocal r, with one correction: as exact as a division, in four operations.
__device__ __forceinline__ float quotient(float x, float divisor, float r) {
  const float q = x * r;
  const float corrected = fmaf(fmaf(-q, divisor, x), r, q);
  return corrected == corrected ? corrected : q;  // an infinity stays one
}

/// Calls body_of(image, row) for every row of `height` in the images; what it returns is called with (column,
/// channel) for every pixel of `width` and every V channels.
template <int V, class BodyOf>
__device__ __forceinline__ void each_pixel(const PoolShape& s, int height, int width, const BodyOf& body_of) {
  const auto packs = static_cast<unsigned>(s.channels / V);
  const unsigned in_row = static_cast<unsigned>(width) * packs;
  const auto rows = static_cast<unsigned>(s.batch) * static_cast<unsigned>(height);
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    const unsigned n = row / static_cast<unsigned>(height);
    const auto body =
        body_of(static_cast<std::int64_t>(n), static_cast<int>(row - n * static_cast<unsigned>(height)));
    for (unsigned i = threadIdx.x; i < in_row; i += blockDim.x)
      body(static_cast<int>(i / packs), static_cast<int>(i % packs) * V);
  }
}

/// The windows that hold a row or column: first to last.
struct Holders {
  int first, last;
  /// `at`: counted from the border's first; windows o with o * stride <= at < o * stride + kernel.
  __device__ __forceinline__ Holders(int at, int kernel, int stride, int count)
      : first(at < kernel
                  ? 0
                  : static_cast<int>(static_cast<unsigned>(at - kernel) / static_cast<unsigned>(stride)) + 1),
        last(min(static_cast<int>(static_cast<unsigned>(at) / static_cast<unsigned>(stride)), count - 1)) {}
};

/// V channels of a window so far.
template <int V, bool is_max>
struct Pooled {
  float out[V];
  int best[V];
  __device__ explicit Pooled(const Window& w, const PoolShape& s) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      out[k] = is_max && !w.is_empty() ? -std::numeric_limits<float>::infinity() : 0.0f;
      best[k] = w.is_empty() ? 0 : w.place(s, w.h0, w.w0);
    }
  }
  __device__ __forceinline__ void add(const float* v, int at, bool exists = true) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if constexpr (is_max) {
        // The first among equals; the first NaN stays. (Without &&, which is a branch.)
        const bool is_larger = !(v[k] <= out[k]) & (out[k] == out[k]);
        out[k] = is_larger ? v[k] : out[k];
        best[k] = is_larger ? at : best[k];
      } else {
        out[k] += exists ? v[k] : 0.0f;
      }
    }
  }
};

/// `side`: of a square window, whose rows are each loaded at once; 0: the window has any shape.
template <int V, bool is_max, int side, class T>
__global__ void __launch_bounds__(block_threads)
    pool_kernel(PoolShape s, const T* x, T* y, PoolPlace* place) {
  each_pixel<V>(s, s.out_h, s.out_w, [&](std::int64_t n, int oh) {
    const T* image = x + n * s.h * s.w * s.channels;
    const std::int64_t row = (n * s.out_h + oh) * s.out_w;
    T* const row_y = y + row * s.out_stride;
    PoolPlace* const row_place = is_max && place != nullptr ? place + row * s.channels : nullptr;
    return [=, &s](int ow, int c) {
      const Window w(s, oh, ow);
      Pooled<V, is_max> pooled(w, s);
      if (side > 0 && !w.is_empty()) {
        // Outside of the input the nearest value of the window is loaded. It may be the maximum, as itself; a
        // mean leaves it out.
#pragma unroll
        for (int i = 0; i < side; ++i) {
          const int h = min(max(w.top + i, w.h0), w.h1 - 1);
          float v[side > 0 ? side : 1][V];
          int col[side > 0 ? side : 1];
#pragma unroll
          for (int j = 0; j < side; ++j) {
            col[j] = min(max(w.left + j, w.w0), w.w1 - 1);
            load<V>(image + ((h * s.w + col[j]) * s.channels + c), v[j]);
          }
#pragma unroll
          for (int j = 0; j < side; ++j)
            pooled.add(v[j], w.place(s, h, col[j]), h == w.top + i && col[j] == w.left + j);
        }
      } else {
        for (int h = w.h0; h < w.h1; ++h) {
          for (int col = w.w0; col < w.w1; ++col) {
            float v[V];
            load<V>(image + ((h * s.w + col) * s.channels + c), v);
            pooled.add(v, w.place(s, h, col));
          }
        }
      }
      if constexpr (is_max) {
        if (row_place != nullptr) {
          PoolPlace best[V];
#pragma unroll
          for (int k = 0; k < V; ++k) best[k] = static_cast<PoolPlace>(pooled.best[k]);
          store_places<V>(row_place + (ow * s.channels + c), best);
        }
      } else {
        const auto divisor = static_cast<float>(counted_rows(s, oh) * counted_columns(s, ow));
        const float r = 1 / divisor;
#pragma unroll
        for (int k = 0; k < V; ++k) pooled.out[k] = quotient(pooled.out[k], divisor, r);
      }
      store<V>(row_y + (ow * s.out_stride + c), pooled.out);
    };
  });
}

/// Means over windows of many pixels, such as whole images, which have few output pixels: a block computes
/// `packs_of_block` times V channels of one. Its threads share the window's pixels; their sums are added in
/// order.
template <int V, class T>
__global__ void __launch_bounds__(block_threads)
    mean_of_many_kernel(PoolShape s, int packs_of_block, const T* x, T* y) {
  __shared__ float sums[V][block_threads];
  const int packs = s.channels / V, tiles = (packs + packs_of_block - 1) / packs_of_block;
  const int thread = static_cast<int>(threadIdx.x), groups = block_threads / packs_of_block;
  const int group = thread / packs_of_block, in_tile = thread % packs_of_block;
  const std::int64_t units = s.batch * s.out_h * s.out_w * tiles;
  for (std::int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const std::int64_t pixel = unit / tiles, row = pixel / s.out_w, n = row / s.out_h;
    const int pack = static_cast<int>(unit % tiles) * packs_of_block + in_tile, c = pack * V;
    const int oh = static_cast<int>(row % s.out_h), ow = static_cast<int>(pixel % s.out_w);
    const Window w(s, oh, ow);
    const int width = w.w1 - w.w0, count = w.is_empty() || pack >= packs ? 0 : (w.h1 - w.h0) * width;
    const T* image = x + n * s.h * s.w * s.channels;
    float sum[V] = {};
    for (int i = group; i < count; i += groups) {
      float v[V];
      load<V>(image + (((w.h0 + i / width) * s.w + w.w0 + i % width) * s.channels + c), v);
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] += v[k];
    }
#pragma unroll
    for (int k = 0; k < V; ++k) sums[k][thread] = sum[k];
    __syncthreads();
    if (group == 0 && pack < packs) {
      const auto divisor = static_cast<float>(counted_rows(s, oh) * counted_columns(s, ow));
      const float r = 1 / divisor;
      for (int g = 1; g < groups; ++g) {
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += sums[k][g * packs_of_block + in_tile];
      }
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] = quotient(sum[k], divisor, r);
      store<V>(y + (pixel * s.out_stride + c), sum);
    }
    __syncthreads();
  }
}

/// What a window gives one of its pixels.
template <int V, bool is_max, class T>
struct Given {
  float g[V];
  PoolPlace places[V];
  __device__ __forceinline__ void load_from(const T* dy, const PoolPlace* place) {
    load<V>(dy, g);
    if constexpr (is_max) load_places<V>(place, places);
  }
  /// Adds a maximum's gradient if the maximum is at `here`, the pixel's place in the window.
  __device__ __forceinline__ void add_to(float* sum, int here, bool exists = true) const {
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (exists && places[k] == here) sum[k] += g[k];
  }
  /// Adds a pixel's share of a mean's gradient.
  __device__ __forceinline__ void add_share_to(float* sum, float share, bool exists = true) const {
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = exists ? fmaf(g[k], share, sum[k]) : sum[k];
  }
};

/// `reach`: up to so many windows in each direction hold a pixel, and a row of them is loaded at once; 0: any
/// number.
template <int V, bool is_max, int reach, class T>
__global__ void __launch_bounds__(block_threads, reach < 3 ? 4 : 2)
    pool_gradient_kernel(PoolShape s, const T* dy, const PoolPlace* place, T* dx) {
  each_pixel<V>(s, s.h, s.w, [&](std::int64_t n, int row) {
    const int y = row + s.pad_h;
    const Holders rows(y, s.kernel_h, s.stride_h, s.out_h);
    const std::int64_t image = n * s.out_h * s.out_w;
    const T* image_dy = dy + image * s.out_stride;
    const PoolPlace* image_place = is_max ? place + image * s.channels : nullptr;
    T* to = dx + (n * s.h + row) * s.w * s.channels;
    // A pixel's share of a mean is that of its row times that of its column.
    float row_share[reach > 0 ? reach : 1] = {};
    if constexpr (!is_max) {
#pragma unroll
      for (int i = 0; i < reach; ++i)
        row_share[i] = 1.0f / static_cast<float>(counted_rows(s, rows.first + i));
    }
    return [=, &s](int col, int c) {
      const int x = col + s.pad_w;
      const Holders columns(x, s.kernel_w, s.stride_w, s.out_w);
      const auto load_window = [&](int oh, int ow, Given<V, is_max, T>& given) {
        const int pixel = oh * s.out_w + ow;
        given.load_from(image_dy + (pixel * s.out_stride + c),
                        is_max ? image_place + (pixel * s.channels + c) : nullptr);
      };
      const auto here = [&](int oh, int ow) {
        return (y - oh * s.stride_h) * s.kernel_w + (x - ow * s.stride_w);
      };
      float sum[V] = {};
      if constexpr (reach > 0) {
        float column_share[reach];
        if constexpr (!is_max) {
#pragma unroll
          for (int j = 0; j < reach; ++j)
            column_share[j] = 1.0f / static_cast<float>(counted_columns(s, columns.first + j));
        }
        // Where no window is left, the last one is loaded again, and left out.
        const auto exists = [&](int i, int j) {
          return rows.first + i <= rows.last && columns.first + j <= columns.last;
        };
#pragma unroll
        for (int i = 0; i < reach; ++i) {
          const int oh = min(rows.first + i, rows.last);
          Given<V, is_max, T> given[reach];
#pragma unroll
          for (int j = 0; j < reach; ++j) load_window(oh, min(columns.first + j, columns.last), given[j]);
#pragma unroll
          for (int j = 0; j < reach; ++j) {
            if constexpr (is_max)
              given[j].add_to(sum, here(oh, columns.first + j), exists(i, j));
            else
              given[j].add_share_to(sum, row_share[i] * column_share[j], exists(i, j));
          }
        }
      } else {
        for (int oh = rows.first; oh <= rows.last; ++oh) {
          for (int ow = columns.first; ow <= columns.last; ++ow) {
            Given<V, is_max, T> given;
            load_window(oh, ow, given);
            if constexpr (is_max)
              given.add_to(sum, here(oh, ow));
            else
              given.add_share_to(sum,
                                 1.0f / static_cast<float>(counted_rows(s, oh) * counted_columns(s, ow)));
          }
        }
      }
      store<V>(to + (col * s.channels + c), sum);
    };
  });
}

/// Backward of a maximum where windows of `kernel` rows and columns are `stride` apart. A thread has `stride`
/// rows and columns of pixels, whose windows it loads once: where a window holds them is known when the
/// kernel is compiled.
template <int V, int kernel, int stride, class T>
__global__ void __launch_bounds__(block_threads, kernel > stride ? 2 : 4)
    pool_tiles_gradient_kernel(PoolShape s, const T* dy, const PoolPlace* place, T* dx) {
  constexpr int reach = (kernel + stride - 1) / stride;  // windows of a tile, in each direction
  constexpr PoolPlace none = 0xffff;
  const int first_row = s.pad_h / stride, first_column = s.pad_w / stride;  // tiles before lie in the border
  const int rows = (s.h + s.pad_h - 1) / stride - first_row + 1;
  const int columns = (s.w + s.pad_w - 1) / stride - first_column + 1;
  each_pixel<V>(s, rows, columns, [&](std::int64_t n, int row_of_tiles) {
    const int i = first_row + row_of_tiles;
    const std::int64_t image = n * s.out_h * s.out_w;
    const T* image_dy = dy + image * s.out_stride;
    const PoolPlace* image_place = place + image * s.channels;
    T* to = dx + n * s.h * s.w * s.channels;
    return [=, &s](int column_of_tiles, int c) {
      const int j = first_column + column_of_tiles;
      Given<V, true, T> given[reach][reach];
#pragma unroll
      for (int a = 0; a < reach; ++a)
#pragma unroll
        for (int b = 0; b < reach; ++b) {
          // Where there is no window, another one is loaded, and left out.
          const int oh = i - (reach - 1) + a, ow = j - (reach - 1) + b;
          const int pixel = min(max(oh, 0), s.out_h - 1) * s.out_w + min(max(ow, 0), s.out_w - 1);
          given[a][b].load_from(image_dy + (pixel * s.out_stride + c),
                                image_place + (pixel * s.channels + c));
          if (oh >= 0 && oh < s.out_h && ow >= 0 && ow < s.out_w) continue;
#pragma unroll
          for (int k = 0; k < V; ++k) given[a][b].places[k] = none;
        }
#pragma unroll
      for (int y = 0; y < stride; ++y)
#pragma unroll
        for (int x = 0; x < stride; ++x) {
          float sum[V] = {};
#pragma unroll
          for (int a = 0; a < reach; ++a)
#pragma unroll
            for (int b = 0; b < reach; ++b) {
              const int down = y + (reach - 1 - a) * stride, across = x + (reach - 1 - b) * stride;
              if (down < kernel && across < kernel) given[a][b].add_to(sum, down * kernel + across);
            }
          const int h = i * stride + y - s.pad_h, col = j * stride + x - s.pad_w;
          if (h >= 0 && h < s.h && col >= 0 && col < s.w)
            store<V>(to + ((h * s.w + col) * s.channels + c), sum);
        }
    };
  });
}

unsigned row_blocks(std::int64_t rows) {
  return static_cast<unsigned>(rows < 1 ? 1 : rows < (1 << 16) ? rows : 1 << 16);
}

/// Whether threads may take 8 channels at once: `out` is the output, or its gradient, which may be columns of
/// a wider array.
template <class T>
bool by_eight(const PoolShape& s, const T* out) {
  return s.channels % 8 == 0 && takes_packs(8, sizeof(T), out, s.out_stride);
}

/// Calls body<V, is_max, fixed>(): V is 8 with `by_eight`, and then `fixed` is `size` if that is 1 to 3; else
/// 0.
template <class Body>
void with_variant(const PoolShape& s, bool by_eight, int size, const Body& body) {
  const auto with_kind = [&]<int V, int fixed>() {
    s.max ? body.template operator()<V, true, fixed>() : body.template operator()<V, false, fixed>();
  };
  if (!by_eight) return with_kind.template operator()<1, 0>();
  if (size == 1) return with_kind.template operator()<8, 1>();
  if (size == 2) return with_kind.template operator()<8, 2>();
  if (size == 3) return with_kind.template operator()<8, 3>();
  with_kind.template operator()<8, 0>();
}

}  // namespace

cudaError_t launch_pool(DataType type, const PoolShape& s, const void* x, void* y, PoolPlace* place,
                        cudaStream_t stream) {
  constexpr int many = 64;  // pixels of a window
  return with_type(type, [&]<class T>(T) {
    T* const out = static_cast<T*>(y);
    if (!s.max && std::min(s.kernel_h, s.h) * std::min(s.kernel_w, s.w) >= many) {
      const bool wide = by_eight(s, out);
      const int packs = wide ? s.channels / 8 : s.channels;
      int packs_of_block = 32;
      while (packs_of_block / 2 >= packs) packs_of_block /= 2;
      const auto kernel = wide ? mean_of_many_kernel<8, T> : mean_of_many_kernel<1, T>;
      const std::int64_t tiles = (packs + packs_of_block - 1) / packs_of_block;
      LPSGD_LAUNCH(kernel, row_blocks(s.batch * s.out_h * s.out_w * tiles), block_threads, stream)
      (s, packs_of_block, static_cast<const T*>(x), out);
      return;
    }
    const int side = s.kernel_h == s.kernel_w ? s.kernel_h : 0;
    with_variant(s, by_eight(s, out), side, [&]<int V, bool is_max, int fixed>() {
      const auto kernel = pool_kernel<V, is_max, fixed, T>;
      LPSGD_LAUNCH(kernel, row_blocks(s.batch * s.out_h), block_threads, stream)
      (s, static_cast<const T*>(x), out, place);
    });
  });
}

cudaError_t launch_pool_gradient(DataType type, const PoolShape& s, const void* dy, const PoolPlace* place,
                                 void* dx, cudaStream_t stream) {
  const auto reach = [](int kernel, int stride) { return (kernel + stride - 1) / stride; };
  const int most = std::max(reach(s.kernel_h, s.stride_h), reach(s.kernel_w, s.stride_w));
  const bool tiles = s.max && s.kernel_h == s.kernel_w && s.stride_h == 2 && s.stride_w == 2 &&
                     (s.kernel_h == 2 || s.kernel_h == 3);
  return with_type(type, [&]<class T>(T) {
    const T* const gradient = static_cast<const T*>(dy);
    if (tiles && by_eight(s, gradient)) {
      const auto kernel =
          s.kernel_h == 2 ? pool_tiles_gradient_kernel<8, 2, 2, T> : pool_tiles_gradient_kernel<8, 3, 2, T>;
      const std::int64_t rows = (s.h + s.pad_h - 1) / 2 - s.pad_h / 2 + 1;
      LPSGD_LAUNCH(kernel, row_blocks(s.batch * rows), block_threads, stream)
      (s, gradient, place, static_cast<T*>(dx));
      return;
    }
    with_variant(s, by_eight(s, gradient), most, [&]<int V, bool is_max, int windows>() {
      const auto kernel = pool_gradient_kernel<V, is_max, windows, T>;
      LPSGD_LAUNCH(kernel, row_blocks(s.batch * s.h), block_threads, stream)
      (s, gradient, place, static_cast<T*>(dx));
    });
  });
}

}  // namespace lpsgd::cuda
