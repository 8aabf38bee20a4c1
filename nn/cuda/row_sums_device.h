// How kernels sum over the rows of an array that a Cut divides (nn/cuda/kernels.h). The threads of a block
// sum their rows and combine them in shared memory. Blocks write partial sums to memory, and the last block
// of a tile combines these in a fixed order.
#pragma once

#include <cstdint>

#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {

__device__ __forceinline__ std::int64_t min_of(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// The channels and rows of a thread.
struct RowRange {
  int channel;  // the first one
  int thread;   // the number of the thread in its block
  std::int64_t begin, end;
  bool active;
  __device__ explicit RowRange(const Cut& cut, int pack)
      : channel((static_cast<int>(blockIdx.x) * cut.tx + static_cast<int>(threadIdx.x)) * pack),
        thread(static_cast<int>(threadIdx.y) * cut.tx + static_cast<int>(threadIdx.x)),
        begin(static_cast<std::int64_t>(blockIdx.y) * cut.rows_each),
        end(min_of(begin + cut.rows_each, cut.rows)),
        active(channel < cut.channels) {}
};

/// Replaces each v[k] by its sum over the threads of the block that have the same channels. All threads of
/// the block must call it.
template <int V>
__device__ void sum_over_rows(double* v, const Cut& cut, double* shared, int thread) {
  __syncthreads();
  for (int k = 0; k < V; ++k) shared[thread * V + k] = v[k];
  for (int half = cut.ty / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) < half)
      for (int k = 0; k < V; ++k) shared[thread * V + k] += shared[(thread + half * cut.tx) * V + k];
  }
  __syncthreads();
  for (int k = 0; k < V; ++k) v[k] = shared[static_cast<int>(threadIdx.x) * V + k];
}

/// Whether this block is the last one of its tile to call this. If so, the writes of the others are visible.
__device__ inline bool is_last(unsigned* finished) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(&finished[blockIdx.x], 1u) == gridDim.y - 1;
    if (last) finished[blockIdx.x] = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace lpsgd::cuda
