// CUDA's kernel language for the host's compiler. Builds against the emulated GPU compile every .cu file as
// C++ with this header included first. Every thread of a block is a fiber; a shuffle, ballot or barrier waits
// until all threads of the warp or block have arrived. Undefined behaviour ends the program: lanes of a warp
// that arrive at different operations, or that have exited.
//
// Blocks run one after the other, so times mean nothing, and races between warps that no barrier separates
// are not found.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

namespace lpsgd::emulated {

/// A copy into shared memory that has been started, and the group that it is in.
struct AsyncCopy {
  void* to = nullptr;
  const void* from = nullptr;  // null: zeros
  int group = 0;
};
struct Thread {
  uint3 thread{}, block{};
  dim3 threads, blocks;
  std::vector<AsyncCopy> copies = {};
  int groups = 0;         // of copies, that are complete
  unsigned products = 0;  // of matrices
};
extern thread_local Thread* current;

/// What the lanes of a warp wait at.
enum class Barrier : std::uint8_t { sync_warp, shuffle, ballot, matrices, product };
/// Waits until all lanes of the warp have arrived at the same operation; result[i] is then lane i's value.
const std::uint64_t* wait_for_warp(Barrier operation, std::uint64_t value);
/// The same without values.
void wait_for_lanes(Barrier operation);
/// Waits until all threads of the block have arrived. Whether the predicate of any of them is true.
bool wait_for_block(bool predicate);

/// Queues a launch; `kernel` holds the arguments, and `function` is what cudaFuncSetAttribute() knows it by.
/// A launch that is not possible sets the last error.
void launch(dim3 blocks, dim3 threads, std::size_t shared, cudaStream_t stream, const void* function,
            std::function<void()> kernel);
/// The shared memory that the launch gave to the block: at its start all bits are ones, a NaN in any type.
unsigned char* launched_shared();

struct Launcher {
  dim3 blocks, threads;
  std::size_t shared;
  cudaStream_t stream;
  template <class... P>
  auto with(void (*kernel)(P...)) const {
    static_assert((0 + ... + sizeof(P)) <= 4096, "a launch takes 4 KiB of arguments");
    return [kernel, l = *this](std::type_identity_t<P>... arguments) {
      launch(l.blocks, l.threads, l.shared, l.stream, reinterpret_cast<const void*>(kernel),
             [=] { kernel(arguments...); });
    };
  }
};

template <class T>
std::uint64_t pack(T x) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}
template <class T>
T unpack(std::uint64_t bits) {
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
/// The thread's index in its block, and in its warp.
inline unsigned thread_number() {
  const Thread& t = *current;
  return t.thread.x + t.threads.x * t.thread.y;
}
inline int lane() {
  return static_cast<int>(thread_number() % 32);
}

// Instructions that nn/cuda/matrix_device.h uses. matrices.cc and product.cc define them.

/// ldmatrix.x4: of matrix i lane 8 i + r names row r.
void load_matrices(const void* row, bool transposed, std::uint32_t (&out)[4]);
/// mma.m16n8k16 of bfloat16: sum += a b, with sums in float32.
void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
/// cp.async of 16 bytes, commit_group and wait_group. Nothing is written before the wait.
void copy_async(void* to, const void* from, bool zeros);
void commit_copies();
void wait_for_copies(int groups_left);

}  // namespace lpsgd::emulated

#define LPSGD_LAUNCH_SHARED(kernel, blocks, threads, bytes, stream)                                         \
  ::lpsgd::emulated::Launcher{dim3(blocks), dim3(threads), static_cast<std::size_t>(bytes), (stream)}.with( \
      kernel)
#define LPSGD_LAUNCH(kernel, blocks, threads, stream) LPSGD_LAUNCH_SHARED(kernel, blocks, threads, 0, stream)
#define LPSGD_LAUNCHED_SHARED(name) unsigned char* const name = ::lpsgd::emulated::launched_shared()
#define threadIdx (::lpsgd::emulated::current->thread)
#define blockIdx (::lpsgd::emulated::current->block)
#define blockDim (::lpsgd::emulated::current->threads)
#define gridDim (::lpsgd::emulated::current->blocks)

template <class T>
T __shfl_sync(unsigned, T x, int from, int width = 32) {
  using namespace lpsgd::emulated;
  const int first = lane() & -width;
  return unpack<T>(wait_for_warp(Barrier::shuffle, pack(x))[first | (from & (width - 1))]);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int other) {
  using namespace lpsgd::emulated;
  return unpack<T>(wait_for_warp(Barrier::shuffle, pack(x))[lane() ^ other]);
}
template <class T>
T __shfl_down_sync(unsigned, T x, int down) {
  using namespace lpsgd::emulated;
  const int from = lane() + down;
  return unpack<T>(wait_for_warp(Barrier::shuffle, pack(x))[from < 32 ? from : lane()]);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
  using namespace lpsgd::emulated;
  const std::uint64_t* all = wait_for_warp(Barrier::ballot, yes ? 1 : 0);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<unsigned>(all[i]) << i;
  return bits;
}
inline void __syncwarp() {
  lpsgd::emulated::wait_for_lanes(lpsgd::emulated::Barrier::sync_warp);
}
inline void __syncthreads() {
  lpsgd::emulated::wait_for_block(false);
}
inline int __syncthreads_or(int yes) {
  return lpsgd::emulated::wait_for_block(yes != 0);
}
inline void __threadfence() {}
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> x) {
  const T before = *to;
  *to += x;
  return before;
}
template <class T>
void __stwb(T* to, T x) {
  *to = x;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) >> (shift % 32));
}
/// The number of the lowest bit that is set, from 1 on.
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
using std::max;
using std::min;
