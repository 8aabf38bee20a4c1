// (nvcc's front end does not take fmt's compile-time checks, so kernels stand apart from what reports
// errors.)
#include "core/cuda/launch.h"
#include "tests/core/philox_draw_device.h"

namespace lpsgd {

namespace {

__global__ void draw_blocks(std::uint32_t* out, std::uint32_t blocks) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= blocks) return;
  const Philox4x32 block = draw(i);
  for (int word = 0; word < 4; ++word) out[4 * i + word] = block.x[word];
}

}  // namespace

cudaError_t launch_draws(std::uint32_t* out, std::uint32_t blocks, cudaStream_t stream) {
  LPSGD_LAUNCH(draw_blocks, (blocks + 255) / 256, 256, stream)(out, blocks);
  return cudaGetLastError();
}

}  // namespace lpsgd
