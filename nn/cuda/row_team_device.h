// Rows that a team of threads holds: a part of a warp, a warp or a block. A thread has packs of V
// neighbouring values, and the packs of the team's threads lie side by side.
#pragma once

#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {

/// The blocks of a grid whose teams have a row each, or several if there are many.
template <int team>
inline unsigned blocks_for_rows(std::int64_t rows) {
  return blocks_for(rows * team, 4096);
}

/// Calls body(row, exists) with each row of this thread's team. Unless a team is a block, it also gets rows
/// that do not exist: all lanes of a warp must arrive at its shuffles.
template <int team, class Body>
__device__ __forceinline__ void over_team_rows(std::int64_t rows, const Body& body) {
  constexpr int teams = block_threads / team;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * teams; first < rows;
       first += static_cast<std::int64_t>(gridDim.x) * teams) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / team;
    body(row, row < rows);
  }
}

/// The result of `join` over the team's values, the same on all its threads.
template <int team, class Join>
__device__ __forceinline__ float over_team(float v, const Join& join) {
#pragma unroll
  for (int distance = (team < 32 ? team : 32) / 2; distance > 0; distance /= 2)
    v = join(v, __shfl_xor_sync(0xffffffffu, v, distance));
  if constexpr (team > 32) {
    static_assert(team == block_threads);
    __shared__ float shared[team / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
#pragma unroll
    for (int warp = 1; warp < team / 32; ++warp) v = join(v, shared[warp]);
  }
  return v;
}
template <int team>
__device__ __forceinline__ float sum_over_team(float v) {
  return over_team<team>(v, [](float a, float b) { return a + b; });
}

/// Calls body(u, c) for the thread's packs of a row's first `width` values: c is the pack's first value, and
/// u its number among the thread's. N > 0: there are at most N packs; 0: any number, and u is 0.
template <int team, int V, int N, class Body>
__device__ __forceinline__ void over_packs(int width, const Body& body) {
  const int first = static_cast<int>(threadIdx.x) % team * V;
  if constexpr (N > 0) {
#pragma unroll
    for (int u = 0; u < N; ++u)
      if (first + u * team * V < width) body(u, first + u * team * V);
  } else {
    for (int c = first; c < width; c += team * V) body(0, c);
  }
}

/// Value c of a row is at place(c).
struct SideBySide {
  __device__ __forceinline__ std::int64_t place(int c) const { return c; }
};

/// The thread's packs of a row. N > 0: they are loaded at once and stay in registers, where packs beyond
/// `width` are 0; 0: each is loaded when it is used, from cache after the first time.
template <int team, int V, int N, class T, class Places = SideBySide>
class RowPacks {
 public:
  __device__ __forceinline__ RowPacks(const T* row, int width, const Places& places = {}) : row_(row) {
    if constexpr (N > 0) {
      over_packs<team, V, N>(width, [&](int u, int c) { load<V>(row + places.place(c), v_[u]); });
    }
  }
  /// Pack (u, c) of over_packs(). What is written to it stays only if N > 0.
  __device__ __forceinline__ float (&at(int u, int c, const Places& places = {}))[V] {
    if constexpr (N > 0) {
      return v_[u];
    } else {
      load<V>(row_ + places.place(c), v_[0]);
      return v_[0];
    }
  }

 private:
  const T* row_;
  float v_[N > 0 ? N : 1][V] = {};
};

}  // namespace lpsgd::cuda
