// Images that arrive as bytes, on the CPU.
#include <gtest/gtest.h>

#include "core/error.h"
#include "nn/network.h"
#include "tests/nn/pixel_cases.h"

namespace lpsgd {
namespace {

TEST(PixelInput, CropsMirrorsAndScales) {
  for (const int threads : {1, 3})
    check_pixel_inputs([&] { return make_cpu_backend(threads, Compute::fp32); }, DataType::f32);
}

TEST(PixelInput, RoundsOnceMoreForBf16) {
  // Only products need the processor's bf16.
  check_pixel_inputs([] { return make_cpu_backend(1, Compute::fp32); }, DataType::bf16);
}

TEST(PixelInput, MustFitTheNetwork) {
  const NetworkSpec spec(config::parse_text(
      "input: [4, 5, 3]\nclasses: 2\nlayers: [flatten, {dense: fc, units: 2}]", "net.yaml"));
  const Normalization norm{{0, 0, 0}, {1, 1, 1}};
  Network network(spec, {.batch = 2, .pixels = PixelOptions{{6, 7, 3}, norm}});
  const std::vector<std::uint8_t> pixels(2 * 6 * 7 * 3, 255);
  const std::vector<std::int32_t> labels{0, 1};
  const std::vector<PixelCrop> crops(2);
  Samples samples{.labels = labels, .pixels = pixels, .crops = crops};
  EXPECT_NO_THROW(network.forward_train(samples, 0));
  samples.crops = std::span(crops).first(1);
  EXPECT_THROW(network.forward_train(samples, 0), Error);
  samples.crops = {};
  EXPECT_NO_THROW(network.forward_eval(samples, 2));
  samples.pixels = std::span(pixels).first(2 * 4 * 5 * 3);
  EXPECT_THROW(network.forward_train(samples, 0), Error);
  EXPECT_THROW(Network(spec, {.pixels = PixelOptions{{6, 7, 1}, {{0}, {1}}}}), Error);
  EXPECT_THROW(Network(spec, {.pixels = PixelOptions{{6, 7, 3}, {{0}, {1}}}}), Error);
}

/// What a network of floats computes for the scaled images is what it computes for the bytes.
TEST(PixelInput, IsTheFloatInput) {
  const NetworkSpec spec(config::parse_text(
      "input: [3, 4, 2]\nclasses: 5\nlayers: [flatten, {dense: fc, units: 5}]", "net.yaml"));
  Network floats(spec, {.batch = 3}),
      bytes(spec, {.batch = 3, .pixels = PixelOptions{{3, 4, 2}, {{0.5, 0.25}, {0.5, 2}}}});
  std::vector<std::uint8_t> pixels;
  std::vector<float> inputs;
  for (int i = 0; i < 3 * 3 * 4 * 2; ++i) {
    pixels.push_back(static_cast<std::uint8_t>(31 * i));
    const float x = static_cast<float>(pixels.back()) / 255.0f;
    inputs.push_back(i % 2 == 0 ? (x - 0.5f) / 0.5f : (x - 0.25f) / 2.0f);
  }
  const std::vector<std::int32_t> labels{4, 0, 2};
  floats.forward_eval({inputs, labels}, 3);
  bytes.forward_eval({.labels = labels, .pixels = pixels}, 3);
  EXPECT_TRUE(std::ranges::equal(floats.logits(), bytes.logits()));
  EXPECT_EQ(floats.take_metrics().loss, bytes.take_metrics().loss);
}

}  // namespace
}  // namespace lpsgd
