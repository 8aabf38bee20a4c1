// Images that arrive as bytes, on the GPU: the same bits as on the CPU.
#include <gtest/gtest.h>

#include "nn/cuda/backend.h"
#include "tests/core/gpu_test.h"
#include "tests/nn/pixel_cases.h"

namespace lpsgd {
namespace {

using PixelInputGpu = GpuTest;

TEST_F(PixelInputGpu, CropsMirrorsAndScales) {
  check_pixel_inputs([&] { return make_cuda_backend(device, Compute::fp32, true); }, DataType::f32);
}

TEST_F(PixelInputGpu, RoundsOnceMoreForBf16) {
  if (const auto why = unsupported(Compute::bf16, device)) GTEST_SKIP() << *why;
  check_pixel_inputs([&] { return make_cuda_backend(device, Compute::bf16, true); }, DataType::bf16);
}

}  // namespace
}  // namespace lpsgd
