// Marks functions that run on the host and in CUDA kernels.
#pragma once

#if defined(__CUDACC__)
#define LPSGD_HD __host__ __device__ __forceinline__
#else
#define LPSGD_HD [[gnu::always_inline]] inline
#endif
