#include "nn/cuda/matrix_device.h"
#include "tests/nn/matrix_product.h"

namespace lpsgd {
namespace {

using namespace cuda;

__global__ void __launch_bounds__(32) product_kernel(MatrixProduct p) {
  if constexpr (has_matrices) {
    constexpr int pitch = 48;  // bytes
    LPSGD_LAUNCHED_SHARED(memory);
    unsigned char *const a = memory, *const b = memory + 16 * pitch;
    const int lane = static_cast<int>(threadIdx.x);
    // a in one group of copies, b in another: a must be there when one group is left.
    copy_async(a + lane / 2 * pitch + lane % 2 * 16, p.a + 8 * lane, p.zeros && lane % 2 == 1);
    commit_copies();
    copy_async(b + lane / 2 * pitch + lane % 2 * 16, p.b + 8 * lane, false);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    const int low = lane % 8, second = lane / 8 % 2, third = lane / 16;
    std::uint32_t left[4], right[4];
    if (p.a_transposed)
      load_matrices<true>(shared_address(a + (low + 8 * third) * pitch + 16 * second), left);
    else
      load_matrices<false>(shared_address(a + (low + 8 * second) * pitch + 16 * third), left);
    wait_for_copies<0>();
    __syncthreads();
    if (p.b_transposed)
      load_matrices<false>(shared_address(b + (low + 8 * third) * pitch + 16 * second), right);
    else
      load_matrices<true>(shared_address(b + (low + 8 * second) * pitch + 16 * third), right);

    for (int half = 0; half < 2; ++half) {
      float* const c = p.c + lane / 4 * 16 + 8 * half + lane % 4 * 2;
      float sum[4] = {c[0], c[1], c[128], c[129]};
      if (half == 0)
        multiply_add(sum, left, right[0], right[1]);
      else
        multiply_add(sum, left, right[2], right[3]);
      c[0] = sum[0], c[1] = sum[1], c[128] = sum[2], c[129] = sum[3];
    }
  }
}

}  // namespace

cudaError_t launch_matrix_product(const MatrixProduct& product, cudaStream_t stream) {
  LPSGD_LAUNCH_SHARED(product_kernel, 1, 32, 2 * 16 * 48, stream)(product);
  return cudaGetLastError();
}

}  // namespace lpsgd
