#include "quant/cpu_isa.h"

#include <cpuid.h>

namespace lpsgd {

namespace {

bool has_f16c() {  // not every compiler's __builtin_cpu_supports knows it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

std::vector<CpuIsa> detect() {
  std::vector<CpuIsa> isas{CpuIsa::baseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
      __builtin_cpu_supports("popcnt")) {
    isas.push_back(CpuIsa::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      isas.push_back(CpuIsa::avx512);
  }
  return isas;
}

}  // namespace

const char* to_text(CpuIsa isa) {
  return isa == CpuIsa::avx512 ? "avx512" : isa == CpuIsa::avx2 ? "avx2" : "baseline";
}

const std::vector<CpuIsa>& cpu_isas() {
  static const std::vector<CpuIsa> isas = detect();
  return isas;
}

}  // namespace lpsgd
