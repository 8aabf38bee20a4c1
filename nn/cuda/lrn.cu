// Local response normalisation. A thread computes one value. The values of its window come from the cache.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

/// k + scale * the sum of squares over the window of channel c: c - size / 2 to c + (size - 1) / 2.
template <class T>
__device__ __forceinline__ float window_base(const T* row, std::int64_t c, std::int64_t channels,
                                             const LrnConstants& k) {
  const std::int64_t first = c - k.size / 2, last = c + (k.size - 1) / 2;
  float sum = 0;
  for (std::int64_t j = first < 0 ? 0 : first; j <= last && j < channels; ++j) {
    const float x = as_float(row[j]);
    sum += x * x;
  }
  return sum * k.scale + k.k;
}

/// d^-beta.
__device__ __forceinline__ float negative_power(float d, float beta) {
  if (beta == 0.75f) {
    const float r = 1.0f / sqrtf(d);
    return r * sqrtf(r);
  }
  return powf(d, -beta);
}

template <class T>
__global__ void lrn_kernel(const T* x, T* y, std::int64_t pixels, std::int64_t channels, LrnConstants k) {
  for (std::int64_t i = thread_number(); i < pixels * channels; i += thread_count()) {
    const std::int64_t c = i % channels;
    const float base = window_base(x + (i - c), c, channels, k);
    y[i] = from_float<T>(as_float(x[i]) * negative_power(base, k.beta));
  }
}

template <class T>
__global__ void lrn_gradient_kernel(const T* g, const T* x, T* dx, std::int64_t pixels, std::int64_t channels,
                                    LrnConstants k) {
  const float factor = 2 * k.scale * k.beta;
  for (std::int64_t i = thread_number(); i < pixels * channels; i += thread_count()) {
    const std::int64_t c = i % channels;
    const T *row = x + (i - c), *gradients = g + (i - c);
    // c lies in the windows of c - (size - 1) / 2 to c + size / 2.
    const std::int64_t first = c - (k.size - 1) / 2, last = c + k.size / 2;
    float sum = 0;
    for (std::int64_t j = first < 0 ? 0 : first; j <= last && j < channels; ++j) {
      const float base = window_base(row, j, channels, k);
      sum += as_float(gradients[j]) * as_float(row[j]) * negative_power(base, k.beta) / base;
    }
    const float own = negative_power(window_base(row, c, channels, k), k.beta);
    dx[i] = from_float<T>(as_float(gradients[c]) * own - factor * as_float(row[c]) * sum);
  }
}

}  // namespace

cudaError_t launch_lrn(DataType type, const void* x, void* y, std::int64_t pixels, std::int64_t channels,
                       LrnConstants constants, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(lrn_kernel<T>, blocks_for(pixels * channels), block_threads, stream)
    (static_cast<const T*>(x), static_cast<T*>(y), pixels, channels, constants);
  });
}

cudaError_t launch_lrn_gradient(DataType type, const void* dy, const void* x, void* dx, std::int64_t pixels,
                                std::int64_t channels, LrnConstants constants, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(lrn_gradient_kernel<T>, blocks_for(pixels * channels), block_threads, stream)
    (static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<T*>(dx), pixels, channels, constants);
  });
}

}  // namespace lpsgd::cuda
