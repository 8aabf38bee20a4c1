#include "tests/emulated/numbers.h"

namespace lpsgd::emulated {

#if defined(__x86_64__)
#define LPSGD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LPSGD_CLONES
#endif

LPSGD_CLONES double dot(const float* a, const float* b, std::int64_t n) {
  double sum[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 16; ++k) sum[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  for (; i < n; ++i) sum[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double total = 0;
  for (const double part : sum) total += part;
  return total;
}

LPSGD_CLONES void add_scaled(double factor, const float* from, double* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * static_cast<double>(from[i]);
}

}  // namespace lpsgd::emulated
