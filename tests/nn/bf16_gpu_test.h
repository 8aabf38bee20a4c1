// For tests of bfloat16 on a GPU: they skip, visibly and with the reason, where it has none.
#pragma once

#include "nn/compute.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {

class Bf16GpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (const auto why = unsupported(Compute::bf16, device)) GTEST_SKIP() << *why;
  }
};

}  // namespace lpsgd
