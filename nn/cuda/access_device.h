// How kernels read and write activations of float32 or bfloat16: 16 bytes at a time, if they are aligned.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/cuda/launch.h"
#include "core/data_type.h"
#include "nn/cuda/kernels.h"

namespace lpsgd::cuda {

__device__ __forceinline__ float as_float(float x) {
  return x;
}
__device__ __forceinline__ float as_float(Bf16 x) {
  return widen(x);
}
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
/// x rounded to T.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return as_float(from_float<T>(x));
}

/// Loads V values: 1, or 2, 4 or 8 from an address that is a multiple of their size, or of 16 bytes.
template <int V>
__device__ __forceinline__ void load(const float* p, float* v) {
  if constexpr (V == 4) {
    const float4 x = *reinterpret_cast<const float4*>(p);
    v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
  } else if constexpr (V == 8) {
    load<4>(p, v);
    load<4>(p + 4, v + 4);
  } else if constexpr (V == 2) {
    const float2 x = *reinterpret_cast<const float2*>(p);
    v[0] = x.x, v[1] = x.y;
  } else {
    v[0] = *p;
  }
}
/// Eight values of bfloat16 in 16 bytes.
__device__ __forceinline__ void widen_pack(const uint4& x, float* v) {
  const std::uint32_t words[] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = __uint_as_float(k % 2 ? words[k / 2] & 0xffff0000u : words[k / 2] << 16);
}
template <int V>
__device__ __forceinline__ void load(const Bf16* p, float* v) {
  if constexpr (V == 4) {
    const uint2 x = *reinterpret_cast<const uint2*>(p);
    v[0] = __uint_as_float(x.x << 16), v[1] = __uint_as_float(x.x & 0xffff0000u);
    v[2] = __uint_as_float(x.y << 16), v[3] = __uint_as_float(x.y & 0xffff0000u);
  } else if constexpr (V == 8) {
    widen_pack(*reinterpret_cast<const uint4*>(p), v);
  } else if constexpr (V == 2) {
    const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(p);
    v[0] = __uint_as_float(word << 16), v[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    v[0] = as_float(*p);
  }
}
template <int V>
__device__ __forceinline__ void store(float* p, const float* v) {
  if constexpr (V == 4)
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
  else if constexpr (V == 8)
    store<4>(p, v), store<4>(p + 4, v + 4);
  else if constexpr (V == 2)
    *reinterpret_cast<float2*>(p) = make_float2(v[0], v[1]);
  else
    *p = v[0];
}
/// Two values in one word, the first in its low half.
__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
  return static_cast<std::uint32_t>(from_float<Bf16>(low).bits) |
         static_cast<std::uint32_t>(from_float<Bf16>(high).bits) << 16;
}
template <int V>
__device__ __forceinline__ void store(Bf16* p, const float* v) {
  if constexpr (V == 4)
    *reinterpret_cast<uint2*>(p) = make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
  else if constexpr (V == 8)
    *reinterpret_cast<uint4*>(p) = make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]),
                                              bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
  else if constexpr (V == 2)
    *reinterpret_cast<std::uint32_t*>(p) = bf16_pair(v[0], v[1]);
  else
    *p = from_float<Bf16>(v[0]);
}

/// V places of pooling: 1, or 8 from an address that is a multiple of 16 bytes.
template <int V>
__device__ __forceinline__ void load_places(const PoolPlace* p, PoolPlace* v) {
  if constexpr (V == 8) {
    const uint4 x = *reinterpret_cast<const uint4*>(p);
    const std::uint32_t words[] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = static_cast<PoolPlace>(words[k / 2] >> k % 2 * 16);
  } else {
    v[0] = *p;
  }
}
template <int V>
__device__ __forceinline__ void store_places(PoolPlace* p, const PoolPlace* v) {
  if constexpr (V == 8) {
    const auto pair = [&](int k) {
      return static_cast<std::uint32_t>(v[k]) | static_cast<std::uint32_t>(v[k + 1]) << 16;
    };
    *reinterpret_cast<uint4*>(p) = make_uint4(pair(0), pair(2), pair(4), pair(6));
  } else {
    *p = v[0];
  }
}

/// v = the sum over the terms of their V values at index i, term by term.
template <int V, class T>
__device__ __forceinline__ void load_sum(const Terms& terms, std::int64_t i, float* v) {
  load<V>(static_cast<const T*>(terms.at[0]) + i, v);
  for (int t = 1; t < terms.count; ++t) {
    float more[V];
    load<V>(static_cast<const T*>(terms.at[t]) + i, more);
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] += more[k];
  }
}

__device__ __forceinline__ std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t thread_count() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// Values of T in 16 bytes.
template <class T>
inline constexpr int pack_of = 16 / static_cast<int>(sizeof(T));

/// Calls body<V>(i) for 0..n, with V = `pack` and for the rest with V = 1, distributed over the threads of
/// the grid.
template <int pack, class Body>
__device__ __forceinline__ void over_values(std::int64_t n, const Body& body) {
  const std::int64_t packs = n / pack;
  for (std::int64_t i = thread_number(); i < packs; i += thread_count())
    body.template operator()<pack>(pack * i);
  const std::int64_t rest = pack * packs + thread_number();
  if (rest < n) body.template operator()<1>(rest);
}

constexpr int block_threads = 256;

/// The number of blocks for n threads, at most `max_blocks`. Kernels loop over the rest.
inline unsigned blocks_for(std::int64_t n, std::int64_t max_blocks = 8192) {
  const std::int64_t blocks = (n + block_threads - 1) / block_threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks < max_blocks ? blocks : max_blocks));
}

/// Calls body(T{}) with the T of `type`, and returns the status of its launch.
template <class Body>
cudaError_t with_type(DataType type, const Body& body) {
  if (type == DataType::f32)
    body(float{});
  else
    body(Bf16{});
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
