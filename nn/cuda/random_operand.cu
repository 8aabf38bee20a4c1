// Random operands (nn/cuda/random_operand.h) in memory of the device.
//
// Memory moved per value: 4 bytes written, in stores of 16 bytes.
#include "nn/cuda/access_device.h"
#include "nn/cuda/random_operand.h"

namespace lpsgd::cuda {
namespace {

__global__ void random_operand_kernel(std::uint32_t tensor, float* to, std::int64_t n) {
  for (std::int64_t i = thread_number(); 4 * i < n; i += thread_count()) {
    const RandomFour four = random_four(tensor, i);
    if (4 * i + 4 <= n) {
      store<4>(to + 4 * i, four.x);
      continue;
    }
    for (int k = 0; 4 * i + k < n; ++k) to[4 * i + k] = four.x[k];
  }
}

}  // namespace

cudaError_t launch_random_operand(std::uint32_t tensor, float* to, std::int64_t n, cudaStream_t stream) {
  LPSGD_LAUNCH(random_operand_kernel, blocks_for((n + 3) / 4), block_threads, stream)(tensor, to, n);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
