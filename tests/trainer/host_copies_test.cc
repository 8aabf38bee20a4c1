// What a step copies to the emulated GPU: its batch of bytes, once, from where the loader wrote it.
#include "tests/emulated/host_copies.h"

#include <gtest/gtest.h>

#include "tests/core/gpu_test.h"
#include "tests/trainer/gpu_model.h"

namespace lpsgd {
namespace {

using HostCopies = GpuTest;

/// One copy is of `inputs`, the other holds step, labels, lengths, crops and marks of continuation.
void check_copies(const std::vector<emulated::HostCopy>& copies, std::span<const std::byte> inputs,
                  std::size_t labels) {
  int of_inputs = 0;
  std::size_t others = 0;
  for (const emulated::HostCopy& copy : copies) {
    EXPECT_TRUE(copy.page_locked);
    if (copy.from == inputs.data()) {
      ++of_inputs;
      EXPECT_EQ(copy.bytes, inputs.size());
    } else {
      others += copy.bytes;
    }
  }
  EXPECT_EQ(of_inputs, 1) << "inputs are copied once, from the caller's memory";
  EXPECT_EQ(copies.size(), 2u);
  EXPECT_LE(others, 64 * 5 + labels * (3 * sizeof(std::int32_t) + sizeof(PixelCrop)));
}

TEST_F(HostCopies, AStepMakesOneOfItsPixels) {
  const RunConfig run = small_run({"data.augment={pad: 2, mirror: true}"});
  GpuModel model(run, device, 2, 3);
  model.loader.start(0);
  emulated::HostCopies noted;
  for (std::int64_t step = 0; step < 6;
       ++step) {  // the third step captures the passes, later ones launch them
    SCOPED_TRACE(step);
    const Batch batch = model.loader.next();
    noted.take();
    model.network.forward_train(samples_of(batch, 1), step);
    model.network.backward({});
    check_copies(noted.take(), std::as_bytes(batch.pixels), batch.labels.size());
    model.optimizer.step(model.network.parameters(), model.network.gradients());
  }
  for (int pass = 0; pass < 4; ++pass) {
    const Batch batch = model.loader.next();
    noted.take();
    model.network.forward_eval(samples_of(batch, 1), batch.valid);
    check_copies(noted.take(), std::as_bytes(batch.pixels), batch.labels.size());
  }
}

TEST_F(HostCopies, AStepMakesOneOfItsSequences) {
  const NetworkSpec spec(config::parse_text(
      "input: [6, 5]\nclasses: 4\nlayers: [{lstm: a, cell: 8}, {dense: fc, units: 4}]", "n"));
  Network network(spec, {.batch = 3, .device = device});
  const PinnedBuffer<float> values(device, 3 * 6 * 5);
  const std::vector<std::int32_t> labels(3 * 6, 1), lengths{6, 2, 4};
  Event read(device);
  emulated::HostCopies noted;
  for (std::int64_t step = 0; step < 5; ++step) {
    noted.take();
    network.forward_train({.inputs = values.view(), .labels = labels, .lengths = lengths, .read = &read},
                          step);
    network.backward({});
    check_copies(noted.take(), std::as_bytes(values.view()), labels.size());
    read.synchronize();
  }
}

}  // namespace
}  // namespace lpsgd
