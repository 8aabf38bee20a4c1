// Operations that read and write every value once: sums, activations, conversions and copies. They are bound
// by memory.
//
// Memory moved per value of b bytes, in loads and stores of 16 bytes where addresses allow:
//   sum, scaled_sum   (terms + 1) b, with a mask b more
//   activation        2 b (x, y); its gradient (gradients + 2) b (y or x, dx)
//   convert           the bytes of both types
//   copy_rows         2 b
//   bias_relu         2 b; the bias comes from cache
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

using maths::One;

template <class T>
__global__ void sum_kernel(T* into, Terms terms, const T* mask, bool relu, std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float v[V], y[V];
    load_sum<V, T>(terms, i, v);
    if (mask != nullptr) load<V>(mask + i, y);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if (mask != nullptr) v[k] = maths::where_positive(y[k], v[k]);
      if (relu) v[k] = maths::relu(v[k]);
    }
    store<V>(into + i, v);
  });
}

template <class T>
__global__ void scaled_sum_kernel(T* into, Terms terms, float factor, std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float v[V];
    load_sum<V, T>(terms, i, v);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] *= factor;
    store<V>(into + i, v);
  });
}

template <Activation kind, class T>
__global__ void activation_kernel(const T* x, T* y, std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float v[V];
    load<V>(x + i, v);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = maths::activation<kind, One>(v[k]);
    store<V>(y + i, v);
  });
}

template <Activation kind, class T>
__global__ void activation_gradient_kernel(Terms gradients, const T* at, T* dx, std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float g[V], v[V];
    load_sum<V, T>(gradients, i, g);
    load<V>(at + i, v);
#pragma unroll
    for (int k = 0; k < V; ++k) g[k] = maths::activation_gradient<kind, One>(v[k], g[k]);
    store<V>(dx + i, g);
  });
}

template <class From, class To>
__global__ void convert_kernel(const From* from, To* to, std::int64_t n) {
  over_values<8>(n, [&]<int V>(std::int64_t i) {
    float v[V];
    load<V>(from + i, v);
    store<V>(to + i, v);
  });
}

template <class From, class To>
__global__ void convert_singly_kernel(const From* from, To* to, std::int64_t n) {
  for (std::int64_t i = thread_number(); i < n; i += thread_count())
    to[i] = from_float<To>(as_float(from[i]));
}

bool is_aligned(const void* p, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) == 0;
}

template <class T, int V>
__global__ void copy_rows_kernel(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride,
                                 std::int64_t rows, std::int64_t width) {
  const std::int64_t packs = width / V;
  for (std::int64_t i = thread_number(); i < rows * packs; i += thread_count()) {
    const std::int64_t row = i / packs, c = i % packs * V;
    float v[V];
    load<V>(from + row * from_stride + c, v);
    store<V>(to + row * to_stride + c, v);
  }
}

template <class T, int V>
__global__ void bias_relu_kernel(T* y, const float* bias, bool relu, std::int64_t rows, std::int64_t width) {
  const std::int64_t packs = width / V;
  for (std::int64_t i = thread_number(); i < rows * packs; i += thread_count()) {
    const std::int64_t c = i % packs * V;
    float v[V], b[V] = {};
    load<V>(y + i * V, v);
    if (bias != nullptr) load<V>(bias + c, b);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if (bias != nullptr) v[k] += b[k];
      if (relu) v[k] = maths::relu(v[k]);
    }
    store<V>(y + i * V, v);
  }
}

/// Calls body<V>() with V = pack_of<T> if `packed`: all rows start at multiples of 16 bytes; else with V = 1.
template <class T, class Body>
void with_pack(bool packed, const Body& body) {
  if (packed)
    body.template operator()<pack_of<T>>();
  else
    body.template operator()<1>();
}

/// Calls body<kind>() for any kind but ReLU.
template <class Body>
void with_kind(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::relu:
      break;
    case Activation::sigmoid:
      return body.template operator()<Activation::sigmoid>();
    case Activation::tanh:
      return body.template operator()<Activation::tanh>();
    case Activation::relu6:
      return body.template operator()<Activation::relu6>();
    case Activation::hardsigmoid:
      return body.template operator()<Activation::hardsigmoid>();
    case Activation::hardswish:
      return body.template operator()<Activation::hardswish>();
    case Activation::silu:
      return body.template operator()<Activation::silu>();
    case Activation::gelu:
      return body.template operator()<Activation::gelu>();
  }
}

}  // namespace

cudaError_t launch_sum(DataType type, void* into, const Terms& terms, const void* mask, bool relu,
                       std::int64_t n, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(sum_kernel<T>, blocks_for(n / pack_of<T>), block_threads, stream)
    (static_cast<T*>(into), terms, static_cast<const T*>(mask), relu, n);
  });
}

cudaError_t launch_scaled_sum(DataType type, void* into, const Terms& terms, float factor, std::int64_t n,
                              cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(scaled_sum_kernel<T>, blocks_for(n / pack_of<T>), block_threads, stream)
    (static_cast<T*>(into), terms, factor, n);
  });
}

cudaError_t launch_activation(DataType type, Activation kind, const void* x, void* y, std::int64_t n,
                              cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_kind(kind, [&]<Activation one>() {
      LPSGD_LAUNCH((activation_kernel<one, T>), blocks_for(n / pack_of<T>), block_threads, stream)
      (static_cast<const T*>(x), static_cast<T*>(y), n);
    });
  });
}

cudaError_t launch_activation_gradient(DataType type, Activation kind, const Terms& gradients, const void* at,
                                       void* dx, std::int64_t n, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_kind(kind, [&]<Activation one>() {
      LPSGD_LAUNCH((activation_gradient_kernel<one, T>), blocks_for(n / pack_of<T>), block_threads, stream)
      (gradients, static_cast<const T*>(at), static_cast<T*>(dx), n);
    });
  });
}

cudaError_t launch_convert(const void* from, DataType from_type, void* to, DataType to_type, std::int64_t n,
                           cudaStream_t stream) {
  const bool packed = is_aligned(from, 16) && is_aligned(to, 16);
  cudaError_t status = cudaSuccess;
  const cudaError_t outer = with_type(from_type, [&]<class From>(From) {
    status = with_type(to_type, [&]<class To>(To) {
      const auto* in = static_cast<const From*>(from);
      auto* const out = static_cast<To*>(to);
      if (packed)
        LPSGD_LAUNCH((convert_kernel<From, To>), blocks_for(n / 8), block_threads, stream)(in, out, n);
      else
        LPSGD_LAUNCH((convert_singly_kernel<From, To>), blocks_for(n), block_threads, stream)(in, out, n);
    });
  });
  return status != cudaSuccess ? status : outer;
}

cudaError_t launch_copy_rows(DataType type, const void* from, std::int64_t from_stride, void* to,
                             std::int64_t to_stride, std::int64_t rows, std::int64_t width,
                             cudaStream_t stream) {
  const std::int64_t pack = 16 / size_of(type);
  const bool packed = width % pack == 0 && from_stride % pack == 0 && to_stride % pack == 0 &&
                      is_aligned(from, 16) && is_aligned(to, 16);
  return with_type(type, [&]<class T>(T) {
    with_pack<T>(packed, [&]<int V>() {
      LPSGD_LAUNCH((copy_rows_kernel<T, V>), blocks_for(rows * width / V), block_threads, stream)
      (static_cast<const T*>(from), from_stride, static_cast<T*>(to), to_stride, rows, width);
    });
  });
}

cudaError_t launch_bias_relu(DataType type, void* y, const float* bias, bool relu, std::int64_t rows,
                             std::int64_t width, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_pack<T>(width % pack_of<T> == 0 && is_aligned(y, 16), [&]<int V>() {
      LPSGD_LAUNCH((bias_relu_kernel<T, V>), blocks_for(rows * width / V), block_threads, stream)
      (static_cast<T*>(y), bias, relu, rows, width);
    });
  });
}

}  // namespace lpsgd::cuda
