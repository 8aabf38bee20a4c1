// The outer step: what local steps changed, and the update of the synchronised weights from its mean.
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

__global__ void difference_kernel(const float* s, const float* w, float* d, std::int64_t n) {
  over_values(n, [&]<int V>(std::int64_t i) {
    float a[V], b[V];
    load<V>(s + i, a);
    load<V>(w + i, b);
#pragma unroll
    for (int k = 0; k < V; ++k) a[k] -= b[k];
    store<V>(d + i, a);
  });
}

__device__ double block_sum(double v) {
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

__global__ void __launch_bounds__(block_threads) outer_kernel(OuterUpdate o) {
  __shared__ bool last;
  double deviation = 0, change = 0;
  over_values(o.n, [&]<int V>(std::int64_t i) {
    float w[V], s[V], mean[V], u[V] = {};
    load<V>(o.weights + i, w);
    load<V>(o.synchronised + i, s);
    load<V>(o.mean + i, mean);
    if (o.momentum != nullptr) load<V>(o.momentum + i, u);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const double off = maths::outer(w[k], s[k], u[k], mean[k], o.rates);
      deviation += off * off;
      change += static_cast<double>(mean[k]) * static_cast<double>(mean[k]);
    }
    store<V>(o.weights + i, w);
    store<V>(o.synchronised + i, s);
    if (o.momentum != nullptr) store<V>(o.momentum + i, u);
  });
  deviation = block_sum(deviation);
  change = block_sum(change);
  if (threadIdx.x == 0) {
    o.partials[2 * blockIdx.x] = deviation;
    o.partials[2 * blockIdx.x + 1] = change;
    __threadfence();
    last = atomicAdd(o.finished, 1u) == gridDim.x - 1;
    if (last) *o.finished = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  deviation = change = 0;
  for (unsigned p = threadIdx.x; p < gridDim.x; p += block_threads) {
    deviation += o.partials[2 * p];
    change += o.partials[2 * p + 1];
  }
  deviation = block_sum(deviation);
  change = block_sum(change);
  if (threadIdx.x != 0) return;
  o.sums[0] += deviation;
  o.sums[1] += change;
}

}  // namespace

cudaError_t launch_difference(const float* s, const float* w, float* d, std::int64_t n, cudaStream_t stream) {
  LPSGD_LAUNCH(difference_kernel, blocks_for(n / 4), block_threads, stream)(s, w, d, n);
  return cudaGetLastError();
}

cudaError_t launch_outer(const OuterUpdate& update, cudaStream_t stream) {
  LPSGD_LAUNCH(outer_kernel, blocks_for(update.n / 4, outer_parts), block_threads, stream)(update);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
