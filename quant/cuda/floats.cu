// none, fp16 and bf16 (quant/codecs/floats.cc) on the device: no scales, so a piece is a run of 256 values.
//
// Memory moved per value with codes of b bytes (4, or 2), all in 16 bytes where addresses allow:
//   encode   4 + b, 8 more with a residual
//   reduce   (ranks + 1) b, 8 more with a residual
//   decode   4 + b, adding to the old values 8 + b
//   check    4
// A measured error reads 8 (values and residual) again.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

struct None {
  using Code = std::uint32_t;
  __device__ static Code encode(float v) {
    return static_cast<Code>(ScalarLanes::bits(canonical<ScalarLanes>(v)));
  }
  __device__ static float decode(Code c) {
    return canonical<ScalarLanes>(ScalarLanes::value(static_cast<std::int32_t>(c)));
  }
};
struct Fp16 {
  using Code = std::uint16_t;
  __device__ static Code encode(float v) {
    const unsigned short rounded = __half_as_ushort(__float2half_rn(v));
    return v == v ? rounded : 0x7e00;
  }
  __device__ static float decode(Code c) { return canonical<ScalarLanes>(__half2float(__ushort_as_half(c))); }
};
struct Bf16 {
  using Code = std::uint16_t;
  __device__ static Code encode(float v) {
    const unsigned short rounded = __bfloat16_as_ushort(__float2bfloat16_rn(v));
    return v == v ? rounded : 0x7fc0;
  }
  __device__ static float decode(Code c) { return from_bf16(c); }
};

/// Eight codes from value `at` on, of which `left` exist: in registers and in memory. Encodings lie at even
/// addresses.
template <class T>
struct Codes {
  using Code = typename T::Code;
  static constexpr int words = sizeof(Code) / 2;  // of 16 bytes
  union {
    uint4 word[words];
    Code code[kEach];
  };
  __device__ __forceinline__ void load(const std::byte* bytes, std::int64_t at, int left, float* v) {
    const std::byte* p = bytes + at * static_cast<std::int64_t>(sizeof(Code));
    if (left >= kEach && aligned(p, 16)) {
#pragma unroll
      for (int w = 0; w < words; ++w) word[w] = reinterpret_cast<const uint4*>(p)[w];
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] = T::decode(code[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (k >= left) continue;
        if constexpr (sizeof(Code) == 4)
          v[k] = T::decode(load_word(p + 4 * k));
        else
          v[k] = T::decode(reinterpret_cast<const Code*>(p)[k]);
      }
    }
  }
  __device__ __forceinline__ void store(std::byte* bytes, std::int64_t at, int left) const {
    std::byte* p = bytes + at * static_cast<std::int64_t>(sizeof(Code));
    if (left >= kEach && aligned(p, 16)) {
#pragma unroll
      for (int w = 0; w < words; ++w) reinterpret_cast<uint4*>(p)[w] = word[w];
    } else {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (k >= left) continue;
        if constexpr (sizeof(Code) == 4)
          store_word(p + 4 * k, code[k]);
        else
          reinterpret_cast<Code*>(p)[k] = code[k];
      }
    }
  }
};

/// What a job codes, without its residual: its own values, or the mean of its contributions.
template <class T>
__device__ __forceinline__ void load_source(const Launch& launch, const Job& job, std::int64_t at, int left,
                                            float* v) {
  if (job.contributions == nullptr) return load_values(job.values + at, left, v);
#pragma unroll
  for (int k = 0; k < kEach; ++k) v[k] = 0;
  for (std::int32_t r = 0; r < job.ranks; ++r) {
    float q[kEach] = {};
    Codes<T>().load(job.contributions[r], at, left, q);
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = r == 0 ? q[k] : v[k] + q[k];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) v[k] *= launch.weight;
}

template <class T>
__global__ void __launch_bounds__(kThreads) encode_floats_kernel(Launch launch) {
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    if (left <= 0) return;
    float v[kEach];
    load_source<T>(launch, job, at, left, v);
    if (job.residual != nullptr) {
      float residual[kEach];
      load_values(job.residual + at, left, residual);
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] += residual[k];
    }
    Codes<T> codes;
    bool finite = true;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      finite &= k >= left || is_finite(v[k]);
      codes.code[k] = T::encode(v[k]);
      v[k] = canonical<ScalarLanes>(v[k] - T::decode(codes.code[k]));
    }
    if (!finite) *job.non_finite = 1;
    codes.store(job.bytes, at, left);
    if (job.residual != nullptr) store_values(job.residual + at, left, v);
  });
}

/// What encode lost, for jobs with an error sum: the error is the new residual, or else the source less
/// its decoded codes. A run measures this rarely, so the source is read again.
template <class T>
__global__ void __launch_bounds__(kThreads) error_floats_kernel(Launch launch) {
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    if (job.error == nullptr) return;
    double own = 0, lost = 0;
    if (left > 0) {
      float values[kEach], v[kEach];
      load_source<T>(launch, job, at, left, values);
      if (job.residual != nullptr) {
        load_values(job.residual + at, left, v);
      } else {
#pragma unroll
        for (int k = 0; k < kEach; ++k)
          v[k] = canonical<ScalarLanes>(values[k] - T::decode(T::encode(values[k])));
      }
      const bool counts = job.contributions == nullptr;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (k >= left) continue;
        if (counts) own += static_cast<double>(values[k]) * static_cast<double>(values[k]);
        lost += static_cast<double>(v[k]) * static_cast<double>(v[k]);
      }
    }
    add_error(job.error, own, lost);
  });
}

template <class T, bool adds>
__global__ void __launch_bounds__(kThreads) decode_floats_kernel(Launch launch) {
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    if (left <= 0) return;
    float q[kEach] = {}, v[kEach];
    Codes<T>().load(job.bytes, at, left, q);
    if constexpr (adds) load_values(job.out + at, left, v);
    bool finite = true;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      finite &= k >= left || is_finite(q[k]);
      v[k] = adds ? add<ScalarLanes>(v[k], q[k]) : canonical<ScalarLanes>(q[k] * launch.weight);
    }
    if (!finite) *job.non_finite = 1;
    store_values(job.out + at, left, v);
  });
}

__global__ void __launch_bounds__(kThreads) check_kernel(Launch launch) {
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    if (left <= 0) return;
    float v[kEach];
    load_values(job.out + at, left, v);
    bool finite = true;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      finite &= is_finite(v[k]);
      v[k] = canonical<ScalarLanes>(v[k]);
    }
    if (finite) return;
    *job.non_finite = 1;
    store_values(job.out + at, left, v);
  });
}

template <class T>
CodecKernels float_kernels() {
  return {.encode =
              [](const Launch& launch, const CodecOptions&, cudaStream_t stream) {
                if (launch.pieces == 0) return;
                const auto kernel = encode_floats_kernel<T>;
                LPSGD_LAUNCH(kernel, blocks_for(launch.pieces), kThreads, stream)(launch);
                const auto measure = error_floats_kernel<T>;
                if (launch.errors) LPSGD_LAUNCH(measure, blocks_for(launch.pieces), kThreads, stream)(launch);
              },
          .decode =
              [](const Launch& launch, const CodecOptions&, bool adds, cudaStream_t stream) {
                if (launch.pieces == 0) return;
                const auto kernel = adds ? decode_floats_kernel<T, true> : decode_floats_kernel<T, false>;
                LPSGD_LAUNCH(kernel, blocks_for(launch.pieces), kThreads, stream)(launch);
              },
          .unit = CodecKernels::Unit::tile};
}

}  // namespace

CodecKernels none_kernels() {
  return float_kernels<None>();
}
CodecKernels fp16_kernels() {
  return float_kernels<Fp16>();
}
CodecKernels bf16_kernels() {
  return float_kernels<Bf16>();
}

void check_floats(const Launch& launch, cudaStream_t stream) {
  if (launch.pieces == 0) return;
  LPSGD_LAUNCH(check_kernel, blocks_for(launch.pieces), kThreads, stream)(launch);
}

}  // namespace lpsgd::cuda
