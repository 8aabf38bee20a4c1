// The outer step: what local steps changed, and the update of the synchronised weights from its mean.
//
// Memory moved per value, in loads and stores of 16 bytes: difference 12 bytes (two read, one written); outer
// 20 (weights written, synchronised weights read and written, mean and weights read), 8 more with momentum.
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

__global__ void difference_kernel(const float* s, const float* w, float* d, std::int64_t n) {
  over_values<4>(n, [&]<int V>(std::int64_t i) {
    float a[V], b[V];
    load<V>(s + i, a);
    load<V>(w + i, b);
#pragma unroll
    for (int k = 0; k < V; ++k) a[k] -= b[k];
    store<V>(d + i, a);
  });
}

__global__ void outer_kernel(OuterUpdate o) {
  over_values<4>(o.n, [&]<int V>(std::int64_t i) {
    float w[V], s[V], mean[V], u[V] = {};
    load<V>(o.weights + i, w);
    load<V>(o.synchronised + i, s);
    load<V>(o.mean + i, mean);
    if (o.momentum != nullptr) load<V>(o.momentum + i, u);
#pragma unroll
    for (int k = 0; k < V; ++k) maths::outer(w[k], s[k], u[k], mean[k], o.rates);
    store<V>(o.weights + i, w);
    store<V>(o.synchronised + i, s);
    if (o.momentum != nullptr) store<V>(o.momentum + i, u);
  });
}

}  // namespace

cudaError_t launch_difference(const float* s, const float* w, float* d, std::int64_t n, cudaStream_t stream) {
  LPSGD_LAUNCH(difference_kernel, blocks_for(n / 4), block_threads, stream)(s, w, d, n);
  return cudaGetLastError();
}

cudaError_t launch_outer(const OuterUpdate& update, cudaStream_t stream) {
  LPSGD_LAUNCH(outer_kernel, blocks_for(update.n / 4), block_threads, stream)(update);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
