#include "nn/cpu/winograd.h"

#include <vector>

namespace lpsgd::cpu::winograd {

#if defined(__x86_64__)
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx2;
#endif

std::span<const Kernels* const> usable_kernels() {
  static const std::vector<const Kernels*> usable = [] {
    std::vector<const Kernels*> out;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) out.push_back(&kernels_avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out.push_back(&kernels_avx2);
#endif
    return out;
  }();
  return usable;
}

}  // namespace lpsgd::cpu::winograd
