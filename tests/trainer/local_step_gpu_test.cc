// Local steps on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "comm/agree.h"
#include "tests/core/gpu_test.h"
#include "tests/trainer/gpu_model.h"
#include "trainer/local_step.h"

namespace lpsgd {
namespace {

using LocalStepGpu = GpuTest;

/// Long before the next exchange, and without waiting for the one that found it.
TEST_F(LocalStepGpu, ANonFiniteChangeIsFoundInTheThirdStepAfterIt) {
  const RunConfig run =
      small_run({"sync.kind=local_sgd", "sync.steps=6", "optimizer={kind: sgd}", "exchange.codec=none"});
  run_thread_ranks(1, [&](Transport& transport) {
    GpuModel model(run, device, 1, 3);
    const std::vector<CodecSpec> codecs(model.network.tensors().size());
    const auto step = make_step(run, codecs, model.network, model.optimizer, transport, nullptr);
    step->set_interval(6);
    model.loader.start(0);
    std::int64_t s = 0;
    for (; s < 5; ++s) step->run(model.loader, s, 0.05);
    const std::vector<float> infinite(1, std::numeric_limits<float>::infinity());
    copy_values(model.network.parameters().first(1), std::span(infinite), model.network.stream());
    for (; s < 8; ++s) step->run(model.loader, s, 0.05);
    try {
      step->run(model.loader, s, 0.05);
      ADD_FAILURE() << "no error";
    } catch (const NonFiniteError& e) {
      EXPECT_THAT(e.what(), ::testing::StartsWith("step 5: the change of "));
    }
  });
}

}  // namespace
}  // namespace lpsgd
