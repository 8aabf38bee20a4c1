#include "nn/cpu/kernels.h"

#include <vector>

namespace lpsgd::cpu {

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx2;
#endif

std::span<const Kernels* const> usable_kernels() {
  static const std::vector<const Kernels*> usable = [] {
    std::vector<const Kernels*> out;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) out.push_back(&kernels_avx512);
    if (__builtin_cpu_supports("avx2")) out.push_back(&kernels_avx2);
#endif
    out.push_back(&kernels_baseline);
    return out;
  }();
  return usable;
}

const Kernels& kernels() {
  return *usable_kernels().front();
}

}  // namespace lpsgd::cpu
