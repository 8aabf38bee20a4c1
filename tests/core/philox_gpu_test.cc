// Philox on the device gives the host's numbers.
#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "tests/core/gpu_test.h"
#include "tests/core/philox_draw_device.h"

namespace lpsgd {
namespace {

using PhiloxGpu = GpuTest;

TEST_F(PhiloxGpu, DeviceAgreesWithHost) {
  const std::uint32_t blocks = 100003;
  const Stream stream(device);
  DeviceBuffer<std::uint32_t> there(device, 4 * blocks);
  PinnedBuffer<std::uint32_t> here(device, 4 * blocks);
  check(launch_draws(there.data(), blocks, stream.view().handle()));
  copy_values(here.view(), there.view(), stream);
  stream.synchronize();
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const Philox4x32 expected = draw(i);
    for (int word = 0; word < 4; ++word) ASSERT_EQ(here[4 * i + word], expected.x[word]) << "block " << i;
  }
}

}  // namespace
}  // namespace lpsgd
