// Batches on their way from the loader to a GPU.
#include <gtest/gtest.h>

#include "tests/core/gpu_test.h"
#include "tests/trainer/gpu_model.h"

namespace lpsgd {
namespace {

using BatchInputsGpu = GpuTest;

/// The weights after an epoch, with the host ahead of the device, or waiting for it after every step.
std::vector<float> trained(const RunConfig& run, Device device, bool waits, int workers,
                           std::int64_t prefetch) {
  GpuModel model(run, device, workers, prefetch);
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < 1; ++epoch) {
    model.loader.start(epoch);
    for (std::int64_t b = 0; b < model.loader.batches(); ++b) {
      const Batch batch = model.loader.next();
      model.network.forward_train(samples_of(batch, 1), step++);
      model.network.backward({});
      model.optimizer.step(model.network.parameters(), model.network.gradients());
      if (waits) model.network.stream().synchronize();
    }
  }
  return model.weights();
}

// With one batch of prefetch there are two slots: the loader asks for a slot again while the device may not
// have come to its copy.
TEST_F(BatchInputsGpu, ASlotIsRefilledWhenItsCopyIsDone) {
  const RunConfig run = small_run({"data.augment={pad: 2, mirror: true}"});
  const std::vector<float> expected = trained(run, device, true, 1, 3);
  for (const int workers : {1, 3}) {
    for (int round = 0; round < 2; ++round) EXPECT_EQ(trained(run, device, false, workers, 1), expected);
  }
}

}  // namespace
}  // namespace lpsgd
