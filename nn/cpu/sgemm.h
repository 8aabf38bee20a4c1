// oneDNN's product of float32 matrices, row-major.
#pragma once

#include <cstdint>
#include <dnnl.hpp>

namespace lpsgd::cpu {

/// A matrix in memory, with rows `stride` values apart. If `transposed`, its transpose enters the product.
struct MatrixView {
  const float* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

/// c (m, n) = a (m, k) b (k, n), or c += a b with `accumulate`. The rows of c are c_stride values apart.
inline void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView a, MatrixView b, float* c,
                  std::int64_t c_stride, bool accumulate = false) {
  dnnl::error::wrap_c_api(
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride, b.data,
                 b.stride, accumulate ? 1.0f : 0.0f, c, c_stride),
      "could not multiply matrices");
}

}  // namespace lpsgd::cpu
