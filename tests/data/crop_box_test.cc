// Crops: against plain references, and against torchvision's numbers.
#include "data/crop_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lpsgd {
namespace {

constexpr Interval area{0.08, 1}, aspect{3.0 / 4, 4.0 / 3};

PhiloxSequence draws(std::uint32_t sample) {
  return {7, RandomUse::augmentation, sample, 3};
}

/// torchvision's RandomResizedCrop.get_params, line by line, with the documented draws.
Box plain_random_resized(std::int64_t width, std::int64_t height, PhiloxSequence random) {
  for (int i = 0; i < 10; ++i) {
    const double target = static_cast<double>(width * height) * (0.08 + 0.92 * double{random.uniform()});
    const double ratio =
        std::exp(std::log(0.75) + (std::log(4.0 / 3) - std::log(0.75)) * double{random.uniform()});
    const auto w = std::llrint(std::sqrt(target * ratio)), h = std::llrint(std::sqrt(target / ratio));
    if (w <= 0 || w > width || h <= 0 || h > height) continue;
    const std::int64_t top = random.below(static_cast<std::uint32_t>(height - h + 1));
    return {random.below(static_cast<std::uint32_t>(width - w + 1)), top, w, h};
  }
  return {-1, -1, -1, -1};
}

TEST(RandomResizedBox, IsThePlainLoops) {
  int fallbacks = 0;
  for (const auto& [width, height] : {std::pair(500, 375), {333, 500}, {64, 64}, {9, 7}, {300, 120}})
    for (std::uint32_t sample = 0; sample < 300; ++sample) {
      PhiloxSequence random = draws(sample);
      const Box box = random_resized_box(width, height, area, aspect, random);
      const Box plain = plain_random_resized(width, height, draws(sample));
      if (plain.width < 0)
        ++fallbacks;
      else
        ASSERT_EQ(box, plain) << width << " " << height << " " << sample;
    }
  EXPECT_LT(fallbacks, 30);
}

// torchvision 0.14: RandomResizedCrop.get_params(Image.new("L", (w, h)), (1, 1), (3/4, 4/3)), whose tries all
// fail; (top, left, height, width).
TEST(RandomResizedBox, FallsBackAsTorchvision) {
  const auto box = [](std::int64_t width, std::int64_t height) {
    PhiloxSequence random = draws(0);
    return random_resized_box(width, height, {1, 1}, aspect, random);
  };
  EXPECT_EQ(box(1000, 10), (Box{493, 0, 13, 10}));
  EXPECT_EQ(box(10, 1000), (Box{0, 493, 10, 13}));
  EXPECT_EQ(box(1000, 7), (Box{495, 0, 9, 7}));
  EXPECT_EQ(box(3, 500), (Box{0, 248, 3, 4}));
  EXPECT_EQ(box(1, 1), (Box{0, 0, 1, 1}));
}

TEST(RandomResizedBox, LiesInTheImageAndVaries) {
  double sum = 0;
  for (std::uint32_t sample = 0; sample < 4000; ++sample) {
    PhiloxSequence random = draws(sample);
    const Box box = random_resized_box(400, 300, area, aspect, random);
    ASSERT_TRUE(box.left >= 0 && box.top >= 0 && box.width >= 1 && box.height >= 1);
    ASSERT_TRUE(box.left + box.width <= 400 && box.top + box.height <= 300);
    sum += static_cast<double>(box.width * box.height) / (400 * 300);
  }
  // Below the mean of [0.08, 1]: large areas fit less often.
  EXPECT_GT(sum / 4000, 0.42);
  EXPECT_LT(sum / 4000, 0.54);
}

TEST(SideRatioBox, IsAShareOfTheShorterSide) {
  EXPECT_EQ(side_ratio_box(500, 375, 0.875, 224, 224), (Box{86, 23, 328, 328}));
  EXPECT_EQ(side_ratio_box(375, 500, 0.875, 224, 224), (Box{23, 86, 328, 328}));
  EXPECT_EQ(side_ratio_box(32, 32, 1, 32, 32), (Box{0, 0, 32, 32}));
  EXPECT_EQ(side_ratio_box(400, 400, 0.5, 20, 10), (Box{100, 150, 200, 100}));
  EXPECT_EQ(side_ratio_box(1, 9, 0.01, 224, 224), (Box{0, 4, 1, 1}));
}

TEST(SideRatioBox, IsAnywhereInTraining) {
  const Interval ratio{0.467, 0.875};
  for (std::uint32_t sample = 0; sample < 500; ++sample) {
    PhiloxSequence random = draws(sample), plain = draws(sample);
    const Box box = random_side_ratio_box(640, 480, ratio, 224, 224, random);
    const auto side = std::llrint(480 * (0.467 + (0.875 - 0.467) * double{plain.uniform()}));
    const std::int64_t top = plain.below(static_cast<std::uint32_t>(480 - side + 1));
    ASSERT_EQ(box, (Box{plain.below(static_cast<std::uint32_t>(640 - side + 1)), top, side, side}));
  }
}

TEST(ResizeBox, IsTheCentreOfTheResizedImage) {
  // 224 of 256 of the shorter side, within a rounding.
  EXPECT_EQ(resize_box(512, 256, 256, 224, 224), (Box{144, 16, 224, 224}));
  EXPECT_EQ(resize_box(500, 375, 256, 224, 224), (Box{86, 23, 328, 329}));
  EXPECT_EQ(resize_box(256, 256, 256, 256, 256), (Box{0, 0, 256, 256}));
  EXPECT_EQ(resize_box(3, 1, 256, 224, 224), (Box{1, 0, 1, 1}));
  EXPECT_EQ(resize_box(1, 1, 256, 224, 224), (Box{0, 0, 1, 1}));
}

/// Where pixel (x, y) of the upright image lies in the stored one, by EXIF's definition: which side of the
/// scene row 0 and column 0 show.
std::pair<int, int> stored_pixel(int orientation, int x, int y, int width, int height) {
  switch (orientation) {
    case 1:  // row 0 is the top, column 0 the left
      return {x, y};
    case 2:  // top, right
      return {width - 1 - x, y};
    case 3:  // bottom, right
      return {width - 1 - x, height - 1 - y};
    case 4:  // bottom, left
      return {x, height - 1 - y};
    case 5:  // left, top
      return {y, x};
    case 6:  // right, top
      return {y, height - 1 - x};
    case 7:  // right, bottom
      return {width - 1 - y, height - 1 - x};
    default:  // left, bottom
      return {width - 1 - y, x};
  }
}

TEST(StoredBox, HoldsTheSamePixels) {
  constexpr int width = 9, height = 6;
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Box box{1, 2, 3, 4};  // of the upright image
    std::vector<std::pair<int, int>> expected, got;
    for (int y = 2; y < 6; ++y)
      for (int x = 1; x < 4; ++x) expected.push_back(stored_pixel(orientation, x, y, width, height));
    const Box stored = stored_box(box, orientation, width, height);
    for (int y = 0; y < stored.height; ++y)
      for (int x = 0; x < stored.width; ++x)
        got.emplace_back(static_cast<int>(stored.left) + x, static_cast<int>(stored.top) + y);
    EXPECT_THAT(got, testing::UnorderedElementsAreArray(expected)) << orientation;
  }
}

}  // namespace
}  // namespace lpsgd
