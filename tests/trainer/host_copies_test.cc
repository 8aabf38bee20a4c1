// What a step copies to the emulated GPU: its batch of bytes, once, from where the loader wrote it.
#include "tests/emulated/host_copies.h"

#include <gtest/gtest.h>

#include "tests/core/gpu_test.h"
#include "tests/trainer/gpu_model.h"

namespace lpsgd {
namespace {

using HostCopies = GpuTest;

void check_copies(const std::vector<emulated::HostCopy>& copies, const Batch& batch) {
  int of_pixels = 0;
  std::size_t others = 0;
  for (const emulated::HostCopy& copy : copies) {
    EXPECT_TRUE(copy.page_locked);
    if (copy.from == batch.pixels.data()) {
      ++of_pixels;
      EXPECT_EQ(copy.bytes, batch.pixels.size_bytes());
    } else {
      others += copy.bytes;
    }
  }
  EXPECT_EQ(of_pixels, 1) << "the pixels are copied once, from the loader's memory";
  EXPECT_EQ(copies.size(), 2u) << "the other copy holds step, labels, lengths and crops";
  EXPECT_LE(others, 64 * 4 + batch.labels.size() * (sizeof(std::int32_t) * 2 + sizeof(PixelCrop)));
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
    model.network.forward_train(samples_of(batch), step);
    model.network.backward({});
    check_copies(noted.take(), batch);
    model.optimizer.step(model.network.parameters(), model.network.gradients());
  }
  for (int pass = 0; pass < 4; ++pass) {
    const Batch batch = model.loader.next();
    noted.take();
    model.network.forward_eval(samples_of(batch), batch.valid);
    check_copies(noted.take(), batch);
  }
}

}  // namespace
}  // namespace lpsgd
