// Colour jitter and PCA lighting: against torchvision's numbers and slow references.
#include "data/colour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lpsgd {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// (3, 4, 3): (67 x + 101 y + 45 c + 13 x y c) mod 256.
Bytes picture() {
  Bytes out;
  for (int y = 0; y < 3; ++y)
    for (int x = 0; x < 4; ++x)
      for (int c = 0; c < 3; ++c)
        out.push_back(static_cast<std::uint8_t>(67 * x + 101 * y + 45 * c + 13 * x * y * c));
  return out;
}

Bytes changed(const Jitter& jitter, Bytes pixels = picture(), std::int64_t channels = 3) {
  ColourChanger().apply(jitter, channels, pixels);
  return pixels;
}

// torchvision 0.14 with Pillow 9.4, of the picture above:
//   torchvision.transforms.functional.adjust_brightness(Image.fromarray(picture), 0.6), and so on
TEST(Jitter, BrightnessIsTorchvisions) {
  EXPECT_EQ(changed({.brightness = 0.6f}),
            (Bytes{0,   27, 54, 40, 67, 94,  80,  107, 134, 120, 147, 21, 60, 87,  114, 100, 135, 16,
                   141, 30, 72, 27, 78, 128, 121, 148, 21,  7,   50,  93, 48, 106, 10,  88,  8,   82}));
  EXPECT_EQ(changed({.brightness = 1.7f}),
            (Bytes{0,   76, 153, 113, 190, 255, 227, 255, 255, 255, 255, 59,  171, 248, 255, 255, 255, 47,
                   255, 85, 205, 78,  221, 255, 255, 255, 61,  22,  142, 255, 136, 255, 30,  249, 23,  232}));
}

TEST(Jitter, ContrastIsTorchvisions) {
  EXPECT_EQ(changed({.contrast = 0.5f}),
            (Bytes{64,  87, 109, 98, 120, 143, 131, 154, 176, 165, 187, 82,  115, 137, 160, 148, 177, 78,
                   182, 89, 125, 87, 129, 171, 165, 188, 82,  71,  106, 142, 104, 153, 73,  138, 71,  133}));
  EXPECT_EQ(changed({.contrast = 1.8f}),
            (Bytes{0,   0, 58,  17, 98,  179, 138, 219, 255, 255, 255, 0,   78, 159, 240, 199, 255, 0,
                   255, 0, 114, 0,  130, 255, 255, 255, 0,   0,   48,  175, 40, 215, 0,   161, 0,   143}));
}

TEST(Jitter, SaturationIsTorchvisions) {
  EXPECT_EQ(changed({.saturation = 0.3f}),
            (Bytes{25,  39, 52,  92, 106, 119, 159, 173, 186, 205, 219, 156, 126, 140, 153, 180, 198, 138,
                   149, 94, 115, 93, 118, 144, 206, 220, 157, 53,  74,  96,  115, 144, 96,  91,  51,  88}));
  EXPECT_EQ(changed({.saturation = 2.1f}),
            (Bytes{0,   53, 148, 26, 120, 215, 93,  187, 255, 193, 255, 0,   60, 154, 249, 148, 255, 0,
                   255, 0,  129, 0,  147, 255, 194, 255, 0,   0,   98,  247, 25, 228, 0,   233, 0,   212}));
}

/// Pillow and OpenCV go through hue and saturation of 8 bits, so that they differ by a few levels. These are
/// torchvision's for tensors, which computes in float32.
TEST(Jitter, HueIsNearTorchvisions) {
  const auto expect_near = [](float turn, const Bytes& expected) {
    const Bytes got = changed({.hue = turn});
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 6) << i;
  };
  expect_near(0.25f, {89,  0,   90, 156, 67, 157, 223, 134, 224, 34,  246, 185, 190, 101, 191, 27,  226, 184,
                      213, 235, 49, 213, 45, 214, 35,  247, 186, 154, 12,  155, 17,  159, 177, 147, 90,  14});
  expect_near(-0.1f,
              {0,   90, 80,  67, 157, 147, 133, 224, 214, 246, 164, 34,  101, 191, 181, 226, 165, 27,
               235, 51, 231, 45, 214, 197, 247, 165, 35,  12,  155, 140, 175, 177, 17,  77,  14,  147});
}

TEST(Jitter, HueOfOneTurnIsTheSame) {
  const Bytes before = picture(), after = changed({.hue = 1.0f});
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 6);
}

TEST(Jitter, OneChannelHasBrightnessAndContrastAlone) {
  const Bytes grey{0, 50, 100, 250};
  EXPECT_EQ(changed({.brightness = 0.5f, .saturation = 0, .hue = 0.3f}, grey, 1), (Bytes{0, 25, 50, 125}));
  EXPECT_EQ(changed({.contrast = 0.5f}, grey, 1), (Bytes{50, 75, 100, 175}));  // around 100
}

TEST(Jitter, ContrastIsAroundTheMeanOfAnyNumberOfChannels) {
  const Bytes values{0, 50, 100, 250};
  for (const std::int64_t channels : {1, 2, 4})
    EXPECT_EQ(changed({.contrast = 0.5f}, values, channels), (Bytes{50, 75, 100, 175})) << channels;
}

TEST(Jitter, IsAppliedInItsOrder) {
  const Jitter both{.order = {0, 1, 2, 3}, .brightness = 1.7f, .contrast = 0.5f};
  EXPECT_EQ(changed(both), changed({.contrast = 0.5f}, changed({.brightness = 1.7f})));
  const Jitter other{.order = {3, 1, 2, 0}, .brightness = 1.7f, .contrast = 0.5f};
  EXPECT_EQ(changed(other), changed({.brightness = 1.7f}, changed({.contrast = 0.5f})));
  EXPECT_NE(changed(both), changed(other));
}

TEST(Jitter, DrawsOrderAndFactors) {
  const JitterOptions options{.brightness = 0.4, .contrast = 2, .saturation = 0, .hue = 0.1};
  std::array<int, 4> first{};
  double least = 9, most = 0;
  for (std::uint32_t sample = 0; sample < 2000; ++sample) {
    PhiloxSequence random(1, RandomUse::augmentation, sample, 0), plain = random;
    const Jitter jitter = draw_jitter(options, random);
    EXPECT_THAT(jitter.order, testing::UnorderedElementsAre(0, 1, 2, 3));
    ++first[static_cast<std::size_t>(jitter.order[0])];
    for (const std::uint32_t n : {4u, 3u, 2u}) plain.below(n);
    EXPECT_NEAR(jitter.brightness, 0.6 + 0.8 * double{plain.uniform()}, 1e-6);
    EXPECT_NEAR(jitter.contrast, 3 * double{plain.uniform()}, 1e-6);
    EXPECT_EQ(jitter.saturation, 1.0f);
    plain.uniform();
    EXPECT_NEAR(jitter.hue, -0.1 + 0.2 * double{plain.uniform()}, 1e-6);
    least = std::min(least, double{jitter.brightness});
    most = std::max(most, double{jitter.brightness});
  }
  for (const int count : first) EXPECT_NEAR(count, 500, 80);
  EXPECT_LT(least, 0.61);
  EXPECT_GT(most, 1.39);
}

TEST(Lighting, HasImageNetsCovariance) {
  constexpr int samples = 20000;
  double sum[3] = {}, product[3][3] = {};
  for (std::uint32_t sample = 0; sample < samples; ++sample) {
    PhiloxSequence random(1, RandomUse::augmentation, sample, 0);
    const ColourShift shift = draw_lighting(0.5, random);
    for (std::size_t i = 0; i < 3; ++i) {
      sum[i] += shift[i];
      for (std::size_t k = 0; k < 3; ++k) product[i][k] += shift[i] * shift[k];
    }
  }
  const double values[3] = {0.2175, 0.0188, 0.0045};
  const double vectors[3][3] = {
      {-0.5675, -0.5808, -0.5836}, {0.7192, -0.0045, -0.6948}, {0.4009, -0.8140, 0.4203}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(sum[i] / samples, 0, 0.5);
    for (std::size_t k = 0; k < 3; ++k) {
      double expected = 0;
      for (int c = 0; c < 3; ++c)
        expected += vectors[c][i] * vectors[c][k] * std::pow(255 * 0.5 * values[c], 2);
      EXPECT_NEAR(product[i][k] / samples, expected, 0.03 * expected + 0.5);
    }
  }
}

TEST(Lighting, IsTheSumOfItsComponents) {
  for (std::uint32_t sample = 0; sample < 100; ++sample) {
    PhiloxSequence random(1, RandomUse::augmentation, sample, 0), plain = random;
    const ColourShift shift = draw_lighting(20, random);
    double normal[4];
    for (int i = 0; i < 4; i += 2) {
      const double radius = std::sqrt(-2 * std::log(1 - double{plain.uniform()}));
      const double angle = 2 * 3.14159265358979 * double{plain.uniform()};
      normal[i] = radius * std::cos(angle);
      normal[i + 1] = radius * std::sin(angle);
    }
    // AlexNet's, from fb.resnet.torch: eigenvectors of R, G, B in columns.
    const double a = 20 * 0.2175 * normal[0], b = 20 * 0.0188 * normal[1], c = 20 * 0.0045 * normal[2];
    EXPECT_NEAR(shift[0], 255 * (-0.5675 * a + 0.7192 * b + 0.4009 * c), 0.51);
    EXPECT_NEAR(shift[1], 255 * (-0.5808 * a - 0.0045 * b - 0.8140 * c), 0.51);
    EXPECT_NEAR(shift[2], 255 * (-0.5836 * a - 0.6948 * b + 0.4203 * c), 0.51);
  }
}

TEST(Lighting, StaysWithinBytes) {
  Bytes pixels{0, 100, 250, 9, 255, 5};
  ColourChanger::add({-10, 3, 20}, pixels);
  EXPECT_EQ(pixels, (Bytes{0, 103, 255, 0, 255, 25}));
}

}  // namespace
}  // namespace lpsgd
