// Local response normalisation. A thread computes eight channels of a pixel: their windows slide through its
// registers, the channels beside its own come from cache. Windows of other sizes than 3 and 5, and channels
// that are no multiple of 8, have a thread for each value.
//
// Memory moved per value of b bytes, in loads and stores of 16 bytes: forward 2 b (x, y), backward 3 b (dy,
// x, dx).
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

/// d^-beta.
__device__ __forceinline__ float negative_power(float d, float beta) {
  if (beta == 0.75f) {
    const float r = 1.0f / sqrtf(d);
    return r * sqrtf(r);
  }
  return powf(d, -beta);
}

/// x^-1/2 of an x that is not subnormal: within two units in the last place, without the steps for
/// subnormals.
__device__ __forceinline__ float inverse_root(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return rsqrtf(x);
#endif
}

/// d^-beta, and that over d.
struct Powers {
  float first, second;
};

/// Without the slow paths of division and square root where beta is 3/4: d^-3/4 is (d^-1/2)^2 over the square
/// root of d^-1/2, each within two units in the last place.
template <bool three_quarters>
__device__ __forceinline__ Powers powers_of(float d, float beta) {
  if constexpr (three_quarters) {
    const float root = rsqrtf(d), inverse = root * root;
    const float power = root == 0.0f ? 0.0f : inverse * inverse_root(root);  // of an infinity: 0
    return {power, power * inverse};
  } else {
    const float power = powf(d, -beta);
    return {power, power / d};
  }
}

// ---- Eight channels a thread

constexpr int each = 8;

/// Values c - each to c + 2 each - 1 of a row, 0 where there are none; c is a multiple of each.
template <class T>
__device__ __forceinline__ void load_around(const T* row, int c, int channels, float* v) {
#pragma unroll
  for (int k = 0; k < each; ++k) v[k] = v[2 * each + k] = 0.0f;
  if (c > 0) load<each>(row + c - each, v);
  load<each>(row + c, v + each);
  if (c + each < channels) load<each>(row + c + each, v + 2 * each);
}

/// k + scale * the sum of squares over the window of value `at`: at - size / 2 to at + (size - 1) / 2.
template <int size>
__device__ __forceinline__ float base_of(const float* v, int at, const LrnConstants& k) {
  float sum = 0;
#pragma unroll
  for (int j = at - size / 2; j <= at + (size - 1) / 2; ++j) sum += v[j] * v[j];
  return sum * k.scale + k.k;
}

template <int size, bool three_quarters, class T>
__global__ void __launch_bounds__(block_threads)
    lrn_window_kernel(const T* x, T* y, unsigned packs, int channels, LrnConstants k) {
  const auto in_row = static_cast<unsigned>(channels / each);
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += gridDim.x * blockDim.x) {
    const std::int64_t row = static_cast<std::int64_t>(i / in_row) * channels;
    const int c = static_cast<int>(i % in_row) * each;
    float v[3 * each], out[each];
    load_around(x + row, c, channels, v);
#pragma unroll
    for (int j = 0; j < each; ++j)
      out[j] = v[each + j] * powers_of<three_quarters>(base_of<size>(v, each + j, k), k.beta).first;
    store<each>(y + row + c, out);
  }
}

template <int size, bool three_quarters, class T>
__global__ void __launch_bounds__(block_threads)
    lrn_window_gradient_kernel(const T* g, const T* x, T* dx, unsigned packs, int channels, LrnConstants k) {
  constexpr int before = (size - 1) / 2,
                after = size / 2;  // c lies in the windows of c - before to c + after
  const float factor = 2 * k.scale * k.beta;
  const auto in_row = static_cast<unsigned>(channels / each);
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += gridDim.x * blockDim.x) {
    const std::int64_t row = static_cast<std::int64_t>(i / in_row) * channels;
    const int c = static_cast<int>(i % in_row) * each;
    float v[3 * each], gradient[3 * each];
    load_around(x + row, c, channels, v);
    load_around(g + row, c, channels, gradient);
    float own[each], ratio[before + each + after];  // of channels c - before on
#pragma unroll
    for (int j = 0; j < before + each + after; ++j) {
      const int at = each - before + j;
      const Powers power = powers_of<three_quarters>(base_of<size>(v, at, k), k.beta);
      ratio[j] = gradient[at] * v[at] * power.second;
      if (j >= before && j < before + each) own[j - before] = power.first;
    }
    float out[each];
#pragma unroll
    for (int j = 0; j < each; ++j) {
      float sum = 0;
#pragma unroll
      for (int w = j; w < j + size; ++w) sum += ratio[w];
      out[j] = gradient[each + j] * own[j] - factor * v[each + j] * sum;
    }
    store<each>(dx + row + c, out);
  }
}

// ---- One value a thread

/// k + scale * the sum of squares over the window of channel c.
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

/// Calls body.operator()<size, three_quarters>() with a size that slides through registers, or with 0.
template <class Body>
void with_size(std::int64_t n, std::int64_t channels, const LrnConstants& k, const Body& body) {
  const auto with_power = [&]<int size>() {
    if (k.beta == 0.75f)
      body.template operator()<size, true>();
    else
      body.template operator()<size, false>();
  };
  const bool slides = channels % each == 0 && n / each < (std::int64_t{1} << 31);
  if (slides && k.size == 5)
    with_power.template operator()<5>();
  else if (slides && k.size == 3)
    with_power.template operator()<3>();
  else
    body.template operator()<0, false>();
}

}  // namespace

cudaError_t launch_lrn(DataType type, const void* from, void* to, std::int64_t pixels, std::int64_t channels,
                       LrnConstants constants, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    const T* x = static_cast<const T*>(from);
    T* y = static_cast<T*>(to);
    const std::int64_t n = pixels * channels;
    with_size(n, channels, constants, [&]<int size, bool three_quarters>() {
      if constexpr (size > 0) {
        const auto kernel = lrn_window_kernel<size, three_quarters, T>;
        LPSGD_LAUNCH(kernel, blocks_for(n / each), block_threads, stream)
        (x, y, static_cast<unsigned>(n / each), static_cast<int>(channels), constants);
      } else {
        LPSGD_LAUNCH(lrn_kernel<T>, blocks_for(n), block_threads, stream)(x, y, pixels, channels, constants);
      }
    });
  });
}

cudaError_t launch_lrn_gradient(DataType type, const void* dy, const void* from, void* to,
                                std::int64_t pixels, std::int64_t channels, LrnConstants constants,
                                cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    const T *g = static_cast<const T*>(dy), *x = static_cast<const T*>(from);
    T* dx = static_cast<T*>(to);
    const std::int64_t n = pixels * channels;
    with_size(n, channels, constants, [&]<int size, bool three_quarters>() {
      if constexpr (size > 0) {
        const auto kernel = lrn_window_gradient_kernel<size, three_quarters, T>;
        LPSGD_LAUNCH(kernel, blocks_for(n / each), block_threads, stream)
        (g, x, dx, static_cast<unsigned>(n / each), static_cast<int>(channels), constants);
      } else {
        LPSGD_LAUNCH(lrn_gradient_kernel<T>, blocks_for(n), block_threads, stream)
        (g, x, dx, pixels, channels, constants);
      }
    });
  });
}

}  // namespace lpsgd::cuda
