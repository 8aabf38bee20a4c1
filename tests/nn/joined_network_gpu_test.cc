// Networks whose convolutions do parts of the work of the batch norms before them (nn/cuda/conv_norm.h). What
// such a convolution computes is in conv_norm_gpu_test.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/nn/bf16_gpu_test.h"
#include "tests/nn/trained_network.h"

namespace lpsgd {
namespace {

class JoinedNetworkGpu : public Bf16GpuTest {};

int count_joined(const Network& network) {
  const std::vector<std::string> choices = network.choices();
  return static_cast<int>(
      std::ranges::count_if(choices, [](const std::string& c) { return c.ends_with(": joined"); }));
}

// A convolution does parts of the work of a batch norm that it alone reads.
TEST_F(JoinedNetworkGpu, JoinsABatchNormWithItsOnlyReader) {
  const auto options = [&](Recompute recompute) {
    return NetworkOptions{.batch = 8,
                          .compute = Compute::bf16,
                          .recompute = recompute,
                          .device = device,
                          .deterministic = true};
  };
  Trained cpu(joinable, {.batch = 8});
  Trained kept(joinable, options(Recompute::none)), twice(joinable, options(Recompute::batch_norm));
  EXPECT_EQ(count_joined(kept.network), 4);
  EXPECT_EQ(count_joined(twice.network), 4);
  for (int s = 0; s < 4; ++s) {  // the third step captures the passes
    SCOPED_TRACE(s);
    kept.step(s);
    twice.step(s);
    EXPECT_EQ(twice.gradients(), kept.gradients());
    EXPECT_EQ(twice.weights(), kept.weights());
    if (s > 0) continue;
    cpu.step(s);
    EXPECT_LE(distance(kept.gradients(), cpu.gradients()), 5e-2);
  }
}

// What the second norm reads is not kept, and computed again only before the second norm's own backward.
TEST_F(JoinedNetworkGpu, DoesNotJoinANormWhoseInputIsRecomputed) {
  const std::string text =
      "input: [9, 10, 6]\nclasses: 5\nlayers:\n"
      "  - {conv: c0, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n0}\n"
      "  - {batch_norm: m0}\n  - {relu: r0}\n  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}\n"
      "  - {batch_norm: n1}\n  - {tanh: t1}\n  - average_pool\n  - flatten\n  - {dense: f, units: 5}\n";
  NetworkOptions options{.batch = 8, .compute = Compute::bf16, .device = device, .deterministic = true};
  Trained kept(text, options);
  options.recompute = Recompute::batch_norm;
  Trained twice(text, options);
  EXPECT_EQ(count_joined(kept.network), 2);
  EXPECT_EQ(count_joined(twice.network), 0);
  kept.step(0);
  twice.step(0);
  EXPECT_LE(distance(twice.gradients(), kept.gradients()), 1e-3);
}

}  // namespace
}  // namespace lpsgd
