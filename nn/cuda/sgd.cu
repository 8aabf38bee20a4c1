// The optimizer: one pass over the arena. If gradients are clipped, there is one over the gradients before
// it.
//
// Memory moved per value, in loads and stores of 16 bytes:
//   sgd    20 bytes: weight and momentum read and written, gradient read
//   adam   28 bytes: weight and two moments read and written, gradient read
//   clip   4 bytes (gradient)
//   lars   8 bytes (weight, gradient) for a tensor's two sums
//   noise  8 bytes: gradient read and written
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

__global__ void sgd_kernel(SgdStep s) {
  const float scale = s.scale != nullptr ? *s.scale : 1.0f;
  const maths::SgdRates common = s.rates->sgd;
  over_values<4>(s.n, [&]<int V>(std::int64_t i) {
    float w[V], g[V], v[V];
    load<V>(s.weights + i, w);
    load<V>(s.gradients + i, g);
    load<V>(s.momentum + i, v);
    const float decay = s.decayed == nullptr || s.decayed[i / sgd_group] != 0 ? s.decay : 0.0f;
    maths::SgdRates rates = common;
    if (s.ratios != nullptr) rates.gain *= s.ratios[s.tensor_of[i / sgd_group]];
#pragma unroll
    for (int k = 0; k < V; ++k) maths::sgd(w[k], g[k], v[k], rates, decay, scale, s.nesterov);
    store<V>(s.weights + i, w);
    store<V>(s.momentum + i, v);
  });
}

__global__ void adam_kernel(SgdStep s) {
  const float scale = s.scale != nullptr ? *s.scale : 1.0f;
  const maths::AdamRates rates = s.rates->adam;
  over_values<4>(s.n, [&]<int V>(std::int64_t i) {
    float w[V], g[V], m[V], v[V];
    load<V>(s.weights + i, w);
    load<V>(s.gradients + i, g);
    load<V>(s.momentum + i, m);
    load<V>(s.second + i, v);
    const bool decayed = s.decayed == nullptr || s.decayed[i / sgd_group] != 0;
    const float decay = decayed && !s.decoupled ? s.decay : 0.0f, shrink = decayed ? rates.shrink : 1.0f;
#pragma unroll
    for (int k = 0; k < V; ++k) maths::adam<maths::One>(w[k], g[k], m[k], v[k], rates, decay, shrink, scale);
    store<V>(s.weights + i, w);
    store<V>(s.momentum + i, m);
    store<V>(s.second + i, v);
  });
}

__device__ double sum_over_block(double v) {
  __shared__ double shared[block_threads];
  __syncthreads();
  shared[threadIdx.x] = v;
  for (int half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  return shared[0];
}

__global__ void __launch_bounds__(block_threads)
    clip_kernel(const float* g, std::int64_t n, double clip_norm, double* partials, unsigned* finished,
                float* scale) {
  __shared__ bool last;
  double squares = 0;
  over_values<4>(n, [&]<int V>(std::int64_t i) {
    float v[V];
    load<V>(g + i, v);
#pragma unroll
    for (int k = 0; k < V; ++k) squares += static_cast<double>(v[k]) * static_cast<double>(v[k]);
  });
  squares = sum_over_block(squares);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = squares;
    __threadfence();
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
    if (last) *finished = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  double total = 0;
  for (unsigned p = threadIdx.x; p < gridDim.x; p += block_threads) total += partials[p];
  total = sum_over_block(total);
  if (threadIdx.x != 0) return;
  // PyTorch's clip_grad_norm_: clip / (norm + 1e-6), at most 1.
  const double factor = clip_norm / (sqrt(total) + 1e-6);
  *scale = factor < 1 ? static_cast<float>(factor) : 1.0f;
}

// Block (part, tensor) adds squares of one part of the tensor: of weights, then of gradients.
__global__ void __launch_bounds__(block_threads)
    lars_sums_kernel(const TensorRange* tensors, const float* w, const float* g, double* partials) {
  const TensorRange t = tensors[blockIdx.y];
  double of_w = 0, of_g = 0;
  over_values<4>(t.elements, [&]<int V>(std::int64_t i) {  // tensors begin at multiples of 16 bytes
    float a[V], b[V];
    load<V>(w + t.begin + i, a);
    load<V>(g + t.begin + i, b);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      of_w += static_cast<double>(a[k]) * static_cast<double>(a[k]);
      of_g += static_cast<double>(b[k]) * static_cast<double>(b[k]);
    }
  });
  of_w = sum_over_block(of_w);
  of_g = sum_over_block(of_g);
  if (threadIdx.x != 0) return;
  double* const out = partials + 2 * (static_cast<std::int64_t>(blockIdx.y) * lars_parts + blockIdx.x);
  out[0] = of_w;
  out[1] = of_g;
}

__global__ void lars_ratios_kernel(const TensorRange* tensors, int count, const double* partials,
                                   const float* scale, float trust, float* ratios) {
  for (std::int64_t t = thread_number(); t < count; t += thread_count()) {
    double of_w = 0, of_g = 0;
    for (int p = 0; p < lars_parts; ++p) {
      of_w += partials[2 * (t * lars_parts + p)];
      of_g += partials[2 * (t * lars_parts + p) + 1];
    }
    const double factor = scale != nullptr ? static_cast<double>(*scale) : 1.0;
    ratios[t] = tensors[t].adapted
                    ? maths::lars_ratio(sqrt(of_w), factor * sqrt(of_g), tensors[t].decay, trust)
                    : 1.0f;
  }
}

__global__ void noise_kernel(const TensorRange* tensors, float* g, const float* scale,
                             const maths::StepRates* rates, std::uint32_t seed) {
  const TensorRange t = tensors[blockIdx.y];
  const float factor = scale != nullptr ? *scale : 1.0f, sigma = rates->noise;
  for (std::int64_t i = thread_number(); 4 * i < t.elements; i += thread_count()) {
    const maths::Normals z =
        maths::gradient_noise(static_cast<std::uint32_t>(i), blockIdx.y, rates->step, seed);
    float* const at = g + t.begin + 4 * i;
    if (4 * i + 4 <= t.elements) {
      float v[4];
      load<4>(at, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = v[k] * factor + z.x[k] * sigma;
      store<4>(at, v);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (4 * i + k < t.elements) at[k] = at[k] * factor + z.x[k] * sigma;
    }
  }
}

}  // namespace

cudaError_t launch_adam(const SgdStep& step, cudaStream_t stream) {
  LPSGD_LAUNCH(adam_kernel, blocks_for(step.n / 4), block_threads, stream)(step);
  return cudaGetLastError();
}

cudaError_t launch_lars(const TensorRange* tensors, int count, const float* weights, const float* gradients,
                        const float* scale, float trust, double* partials, float* ratios,
                        cudaStream_t stream) {
  LPSGD_LAUNCH(lars_sums_kernel, dim3(lars_parts, static_cast<unsigned>(count)), block_threads, stream)
  (tensors, weights, gradients, partials);
  LPSGD_LAUNCH(lars_ratios_kernel, blocks_for(count), block_threads, stream)
  (tensors, count, partials, scale, trust, ratios);
  return cudaGetLastError();
}

cudaError_t launch_noise(const TensorRange* tensors, int count, float* gradients, const float* scale,
                         const maths::StepRates* rates, std::uint32_t seed, cudaStream_t stream) {
  LPSGD_LAUNCH(noise_kernel, dim3(64, static_cast<unsigned>(count)), block_threads, stream)
  (tensors, gradients, scale, rates, seed);
  return cudaGetLastError();
}

cudaError_t launch_sgd(const SgdStep& step, cudaStream_t stream) {
  LPSGD_LAUNCH(sgd_kernel, blocks_for(step.n / 4), block_threads, stream)(step);
  return cudaGetLastError();
}

cudaError_t launch_clip_scale(const float* gradients, std::int64_t n, double clip_norm, double* partials,
                              unsigned* finished, float* scale, cudaStream_t stream) {
  LPSGD_LAUNCH(clip_kernel, norm_parts, block_threads, stream)
  (gradients, n, clip_norm, partials, finished, scale);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
