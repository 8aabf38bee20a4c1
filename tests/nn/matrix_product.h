// A warp's product of matrices by nn/cuda/matrix_device.h, for its test.
#pragma once

#include <cuda_runtime_api.h>

#include "core/data_type.h"

namespace lpsgd {

/// c (16, 16) = a (16, 16) b (16, 16) + c, row by row, in device memory. `a_transposed`: a is given as its
/// transpose; likewise b. If `zeros`, the last 8 columns of what is given as `a` are not read, and count as
/// 0.
struct MatrixProduct {
  const Bf16 *a = nullptr, *b = nullptr;
  float* c = nullptr;
  bool a_transposed = false, b_transposed = false, zeros = false;
};
cudaError_t launch_matrix_product(const MatrixProduct& product, cudaStream_t stream);

}  // namespace lpsgd
