// Random operands (nn/cuda/random_operand.h) in memory of the device.
//
// Memory moved per value: its bytes written, in stores of 16 bytes for float32 and 8 for bfloat16.
#include "nn/cuda/access_device.h"
#include "nn/cuda/random_operand.h"

namespace lpsgd::cuda {
namespace {

template <class T>
__global__ void random_operand_kernel(std::uint32_t tensor, T* to, std::int64_t n) {
  constexpr int bits = random_bits(sizeof(T) == sizeof(float) ? DataType::f32 : DataType::bf16);
  for (std::int64_t i = thread_number(); 4 * i < n; i += thread_count()) {
    const RandomFour four = random_four(tensor, i, bits);
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
  const auto blocks = blocks_for((n + 3) / 4);
  if (type == DataType::f32) LPSGD_LAUNCH(random_operand_kernel<float>, blocks, block_threads, stream)
  (tensor, static_cast<float*>(to), n);
  else LPSGD_LAUNCH(random_operand_kernel<Bf16>, blocks, block_threads, stream)(tensor,
                                                                                static_cast<Bf16*>(to), n);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
