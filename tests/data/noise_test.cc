// Random images of any size, for measuring time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "core/error.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

std::shared_ptr<const ImageDataset> noise(std::vector<std::int64_t> image, std::int64_t samples,
                                          Split split = Split::train) {
  DataOptions options;
  options.dataset = "noise";
  options.image = std::move(image);
  options.classes = 7;
  options.train_samples = options.test_samples = samples;
  return open_images(options, split);
}

TEST(Noise, HasTheShapeAskedAndUniformBytes) {
  const auto set = noise({13, 7, 5}, 100);
  EXPECT_EQ(set->size(), 100);
  EXPECT_EQ(set->fixed_shape(), (ImageShape{13, 7, 5}));
  EXPECT_EQ(set->classes(), 7);
  EXPECT_EQ(set->label(15), 1);
  std::array<int, 256> counts{};
  for (std::int64_t i = 0; i < set->size(); ++i) {
    const std::span<const std::uint8_t> pixels = pixels_of(*set, i);
    ASSERT_EQ(pixels.size(), 13u * 7 * 5);
    for (const std::uint8_t x : pixels) ++counts[x];
  }
  // 45,500 bytes: chi squared of 255 degrees of freedom is below 350 but for one set in 25,000.
  double chi = 0;
  for (const int n : counts) chi += (n - 45500 / 256.0) * (n - 45500 / 256.0) / (45500 / 256.0);
  EXPECT_LT(chi, 350);
}

TEST(Noise, IsAFunctionOfSampleAndSplit) {
  const auto few = noise({4, 4, 3}, 3), many = noise({4, 4, 3}, 9), test = noise({4, 4, 3}, 3, Split::test);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::ranges::equal(pixels_of(*few, i), pixels_of(*many, i)));
    EXPECT_FALSE(std::ranges::equal(pixels_of(*few, i), pixels_of(*test, i)));
  }
  EXPECT_FALSE(std::ranges::equal(pixels_of(*few, 0), pixels_of(*few, 1)));
}

TEST(Noise, RefusesImpossibleShapes) {
  EXPECT_THROW(noise({4, 4}, 3), ConfigError);
  EXPECT_THROW(noise({65536, 65536, 3}, 1000), ConfigError);
  DataOptions options;
  options.dataset = "noise";
  options.image = {65536, 65536, 3};
  options.train_samples = 1000;
  EXPECT_EQ(error_of<ConfigError>([&] { open_dataset(options, Split::train); }),
            "data.image: 1000 samples of 65536 x 65536 x 3 are more than a tebibyte");
  options.mean = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_EQ(error_of<ConfigError>([&] { normalization(options, 1); }),
            "data.mean: nan is not a finite number");
  options.mean.clear();
  options.dataset = "noise";
  EXPECT_THAT(normalization(options, 5).mean, testing::Each(0.5));
  EXPECT_EQ(normalization(options, 1).std.size(), 1u);
}

}  // namespace
}  // namespace lpsgd
