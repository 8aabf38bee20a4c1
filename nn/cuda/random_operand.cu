// Random operands (nn/cuda/random_operand.h) in memory of the device.
//
// Memory moved per value: its bytes written, in stores of 16 bytes for float32 and 8 for bfloat16.
#include "nn/cuda/access_device.h"
#include "nn/cuda/random_operand.h"

namespace lpsgd::cuda {
namespace {

template <class T>
__global__ void random_operand_kernel(DataType type, std::uint32_t tensor, T* to, std::int64_t n) {
  for (std::int64_t i = thread_number(); 4 * i < n; i += thread_count()) {
    const RandomFour four = random_four(type, tensor, i);
    if (4 * i + 4 <= n) {
      store<4>(to + 4 * i, four.x);
      continue;
    }
    for (int k = 0; 4 * i + k < n; ++k) store<1>(to + 4 * i + k, four.x + k);
  }
}

}  // namespace

cudaError_t launch_random_operand(DataType type, std::uint32_t tensor, void* to, std::int64_t n,
                                  cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(random_operand_kernel<T>, blocks_for((n + 3) / 4), block_threads, stream)
    (type, tensor, static_cast<T*>(to), n);
  });
}

}  // namespace lpsgd::cuda
