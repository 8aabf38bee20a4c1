#include "nn/cpu/kernels.h"

namespace lpsgd::cpu {

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx2;
#endif

const Kernels& kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kernels_avx512;
  if (__builtin_cpu_supports("avx2")) return kernels_avx2;
#endif
  return kernels_baseline;
}

}  // namespace lpsgd::cpu
