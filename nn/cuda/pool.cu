// Max and average pooling in NHWC. A thread computes one output value, or in backward the gradient of one
// input value: it adds the gradients of all windows that hold the value, in order. So no two threads add to
// the same value.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

struct Window {
  int h0, h1, w0, w1;  // inside the input
  float divisor;
};

__device__ __forceinline__ Window window(const PoolShape& s, int oh, int ow) {
  const int h = oh * s.stride_h - s.pad_h, w = ow * s.stride_w - s.pad_w;
  Window out{max(h, 0), min(h + s.kernel_h, s.h), max(w, 0), min(w + s.kernel_w, s.w), 1.0f};
  // A window counts its border, but not what hangs over the border in ceil mode.
  const int area = s.count_pad
                       ? (min(h + s.kernel_h, s.h + s.pad_h) - h) * (min(w + s.kernel_w, s.w + s.pad_w) - w)
                       : (out.h1 - out.h0) * (out.w1 - out.w0);
  out.divisor = static_cast<float>(area);
  return out;
}

/// The pixel (n, y, x) and channel that value i of an NHWC array is.
struct Pixel {
  std::int64_t n;
  int y, x, c;
  __device__ Pixel(std::int64_t i, int h, int w, int channels)
      : n(i / channels / w / h),
        y(static_cast<int>(i / channels / w % h)),
        x(static_cast<int>(i / channels % w)),
        c(static_cast<int>(i % channels)) {}
};

template <class T>
__global__ void pool_kernel(PoolShape s, const T* x, T* y, std::int32_t* argmax) {
  const std::int64_t n = s.batch * s.out_h * s.out_w * s.channels;
  for (std::int64_t i = thread_number(); i < n; i += thread_count()) {
    const Pixel p(i, s.out_h, s.out_w, s.channels);
    const T* image = x + p.n * s.h * s.w * s.channels + p.c;
    const Window w = window(s, p.y, p.x);
    float best = 0, sum = 0;
    int best_pixel = -1;
    for (int h = w.h0; h < w.h1; ++h) {
      for (int col = w.w0; col < w.w1; ++col) {
        const int pixel = h * s.w + col;
        const float v = as_float(image[static_cast<std::int64_t>(pixel) * s.channels]);
        sum += v;
        // The first among equals; the first NaN stays.
        if (best_pixel < 0 || !(v <= best || best != best)) {
          best = v;
          best_pixel = pixel;
        }
      }
    }
    y[i] = from_float<T>(s.max ? best : sum / w.divisor);
    if (s.max && argmax != nullptr) argmax[i] = best_pixel;
  }
}

template <class T>
__global__ void pool_gradient_kernel(PoolShape s, const T* dy, const std::int32_t* argmax, T* dx) {
  const std::int64_t n = s.batch * s.h * s.w * s.channels;
  for (std::int64_t i = thread_number(); i < n; i += thread_count()) {
    const Pixel p(i, s.h, s.w, s.channels);
    // Windows oh with oh * stride - pad <= y < oh * stride - pad + kernel.
    const int y = p.y + s.pad_h, x = p.x + s.pad_w;
    const int oh0 = y < s.kernel_h ? 0 : (y - s.kernel_h) / s.stride_h + 1;
    const int ow0 = x < s.kernel_w ? 0 : (x - s.kernel_w) / s.stride_w + 1;
    const int oh1 = min(y / s.stride_h, s.out_h - 1), ow1 = min(x / s.stride_w, s.out_w - 1);
    float sum = 0;
    for (int oh = oh0; oh <= oh1; ++oh) {
      for (int ow = ow0; ow <= ow1; ++ow) {
        const std::int64_t at = ((p.n * s.out_h + oh) * s.out_w + ow) * s.channels + p.c;
        if (!s.max)
          sum += as_float(dy[at]) / window(s, oh, ow).divisor;
        else if (argmax[at] == p.y * s.w + p.x)
          sum += as_float(dy[at]);
      }
    }
    dx[i] = from_float<T>(sum);
  }
}

}  // namespace

cudaError_t launch_pool(DataType type, const PoolShape& s, const void* x, void* y, std::int32_t* argmax,
                        cudaStream_t stream) {
  const std::int64_t n = s.batch * s.out_h * s.out_w * s.channels;
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(pool_kernel<T>, blocks_for(n), block_threads, stream)
    (s, static_cast<const T*>(x), static_cast<T*>(y), argmax);
  });
}

cudaError_t launch_pool_gradient(DataType type, const PoolShape& s, const void* dy,
                                 const std::int32_t* argmax, void* dx, cudaStream_t stream) {
  const std::int64_t n = s.batch * s.h * s.w * s.channels;
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(pool_gradient_kernel<T>, blocks_for(n), block_threads, stream)
    (s, static_cast<const T*>(dy), argmax, static_cast<T*>(dx));
  });
}

}  // namespace lpsgd::cuda
