// For tests that need a GPU: they skip, visibly and with the reason, where there is none.
#pragma once

#include <gtest/gtest.h>

#include "core/device.h"

namespace lpsgd {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().count == 0) GTEST_SKIP() << "needs a GPU: " << cuda_devices().reason;
  }
  Device device = Device::cuda(0);
};

}  // namespace lpsgd
