// The optimizer: one pass over the arena. If gradients are clipped, there is one over the gradients before
// it.
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

__global__ void sgd_kernel(SgdStep s) {
  const float scale = s.scale != nullptr ? *s.scale : 1.0f;
  const maths::SgdRates rates = *s.rates;
  over_values(s.n, [&]<int V>(std::int64_t i) {
    float w[V], g[V], v[V];
    load<V>(s.weights + i, w);
    load<V>(s.gradients + i, g);
    load<V>(s.momentum + i, v);
    const float decay = s.decayed == nullptr || s.decayed[i / sgd_group] != 0 ? s.decay : 0.0f;
#pragma unroll
    for (int k = 0; k < V; ++k) maths::sgd(w[k], g[k], v[k], rates, decay, scale, s.nesterov);
    store<V>(s.weights + i, w);
    store<V>(s.momentum + i, v);
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
  for (std::int64_t i = thread_number(); i < n; i += thread_count())
    squares += static_cast<double>(g[i]) * static_cast<double>(g[i]);
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

}  // namespace

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
