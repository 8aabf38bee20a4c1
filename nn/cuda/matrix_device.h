// Products of small matrices of bfloat16 with sums in float32, which the 32 lanes of a warp compute together,
// and copies into shared memory that go on beside the thread. These are the instructions ldmatrix,
// mma.m16n8k16 and cp.async (PTX ISA, chapter 9.7). They need compute capability 8.0: for older devices
// has_matrices is false, and the functions do nothing.
//
// A fragment is a lane's part of a matrix. With g = lane / 4 and t = lane % 4 it holds, two values in a word:
//
//   a  (16 x 16)  rows g and g + 8, columns 2t and 2t + 1, then the same rows, columns 2t + 8 and 2t + 9
//   b  (16 x 8)   rows 2t and 2t + 1, then 2t + 8 and 2t + 9, of column g
//   sum (16 x 8)  row g, columns 2t and 2t + 1, then the same of row g + 8; float32
//
// load_matrices reads four 8 x 8 matrices from shared memory. Lane 8 i + r names the 16 bytes that are row r
// of matrix i. Word i of the result is a lane's part of matrix i: row g, columns 2t and 2t + 1; if
// `transposed`, column g, rows 2t and 2t + 1.
#pragma once

#include <cstdint>

#include "core/cuda/launch.h"

namespace lpsgd::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool has_matrices = false;
#else
constexpr bool has_matrices = true;
#endif

/// An address in shared memory, in bytes.
#ifdef __CUDACC__
using SharedAddress = std::uint32_t;
#else
using SharedAddress = std::uintptr_t;
#endif

__device__ __forceinline__ SharedAddress shared_address(const void* p) {
#ifdef __CUDACC__
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
#else
  return reinterpret_cast<SharedAddress>(p);
#endif
}

template <bool transposed>
__device__ __forceinline__ void load_matrices(SharedAddress row, std::uint32_t (&out)[4]) {
#ifndef __CUDACC__
  emulated::load_matrices(reinterpret_cast<const void*>(row), transposed, out);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
#endif
}

/// sum += a b.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
#ifndef __CUDACC__
  emulated::multiply_add(sum, a, b0, b1);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/// Starts to copy 16 bytes from device memory to shared memory; `zeros`: writes zeros, and reads nothing.
/// Both addresses are multiples of 16.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool zeros) {
#ifndef __CUDACC__
  emulated::copy_async(to, from, zeros);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(zeros ? 0 : 16)
               : "memory");
#endif
}
/// Ends a group of copies. The thread's own copies are done after wait_for_copies(n), except those of the
/// last n groups; a barrier makes them visible to the other threads.
__device__ __forceinline__ void commit_copies() {
#ifndef __CUDACC__
  emulated::commit_copies();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
template <int groups_left>
__device__ __forceinline__ void wait_for_copies() {
#ifndef __CUDACC__
  emulated::wait_for_copies(groups_left);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(groups_left) : "memory");
#endif
}

}  // namespace lpsgd::cuda
