// The keys augment, evaluate and interpolation: what they read, write and refuse.
#include "data/image_transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/dataset.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

DataOptions read(const std::string& keys) {
  DataOptions options;
  config::read(config::parse_text("{dataset: shapes, " + keys + "}", "a.yaml"), "data", options);
  return options;
}

std::string error_of(const std::string& keys) {
  try {
    read(keys);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

DataOptions written_back(const DataOptions& options) {
  DataOptions again;
  config::read(config::parse_text(config::emit(config::write(options)), "b.yaml"), "data", again);
  return again;
}

TEST(ImageOptions, AreReadAndWrittenBack) {
  const DataOptions first = read(
      "augment: {mirror: true, crop: {kind: random_resized, area: [0.1, 0.9], aspect: 1}, jitter: "
      "{brightness: 0.4, "
      "contrast: 0.3, saturation: 0.2, hue: 0.1}, pca: 0.1}, evaluate: {resize: 256}, interpolation: area");
  for (const DataOptions& options : {first, written_back(first)}) {
    EXPECT_TRUE(options.augment.mirror);
    EXPECT_EQ(options.augment.crop.kind, CropOptions::Kind::random_resized);
    EXPECT_EQ(options.augment.crop.area, (Interval{0.1, 0.9}));
    EXPECT_EQ(options.augment.crop.aspect, (Interval{1, 1}));
    EXPECT_EQ(options.augment.jitter.brightness, 0.4);
    EXPECT_EQ(options.augment.jitter.contrast, 0.3);
    EXPECT_EQ(options.augment.jitter.saturation, 0.2);
    EXPECT_EQ(options.augment.jitter.hue, 0.1);
    EXPECT_EQ(options.augment.pca, 0.1);
    EXPECT_EQ(options.evaluate.resize, 256);
    EXPECT_EQ(options.interpolation, Interpolation::area);
  }
  const DataOptions ratio =
      read("augment: {crop: {kind: side_ratio, ratio: [0.467, 0.875]}}, evaluate: {side_ratio: 0.9}");
  for (const DataOptions& options : {ratio, written_back(ratio)}) {
    EXPECT_EQ(options.augment.crop.kind, CropOptions::Kind::side_ratio);
    EXPECT_EQ(options.augment.crop.ratio, (Interval{0.467, 0.875}));
    EXPECT_EQ(options.evaluate.side_ratio, 0.9);
    EXPECT_EQ(options.evaluate.resize, 0);
  }
}

TEST(ImageOptions, HaveDefaults) {
  const DataOptions plain = read("augment: none, evaluate: auto");
  for (const DataOptions& options : {plain, written_back(plain)}) {
    EXPECT_FALSE(options.augment.any());
    EXPECT_TRUE(options.evaluate.automatic());
    EXPECT_EQ(options.interpolation, Interpolation::linear);
  }
  const CropOptions crop = read("augment: {crop: {kind: random_resized}}").augment.crop;
  EXPECT_EQ(crop.area, (Interval{0.08, 1}));
  EXPECT_EQ(crop.aspect, (Interval{3.0 / 4, 4.0 / 3}));
}

TEST(ImageOptions, RefuseWhatIsWrong) {
  EXPECT_THAT(error_of("augment: {crop: zoom}"), HasSubstr("data.augment.crop: expected a map, got 'zoom'"));
  EXPECT_THAT(error_of("augment: {crop: {kind: zoom}}"),
              HasSubstr("data.augment.crop.kind: 'zoom' is not known"));
  EXPECT_THAT(error_of("augment: {crop: {kind: side_ratio}}"), HasSubstr("ratio"));
  EXPECT_THAT(error_of("augment: {crop: {kind: side_ratio, ratio: [0.9, 0.5]}}"),
              HasSubstr("data.augment.crop.ratio: the first number is the larger one"));
  EXPECT_THAT(error_of("augment: {crop: {kind: side_ratio, ratio: 1.5}}"),
              HasSubstr("data.augment.crop.ratio"));
  EXPECT_THAT(error_of("augment: {crop: {kind: random_resized, area: [0, 1]}}"),
              HasSubstr("data.augment.crop.area: expected a number > 0 and <= 1, got '0'"));
  EXPECT_THAT(error_of("augment: {crop: {kind: random_resized, area: [0.1, 0.5, 1]}}"),
              HasSubstr("expected [min, max]"));
  EXPECT_THAT(error_of("augment: {crop: {kind: random_resized, ratio: 1}}"),
              HasSubstr("data.augment.crop.ratio: unknown key"));
  EXPECT_THAT(error_of("augment: {pad: 4, crop: {kind: random_resized}}"),
              HasSubstr("a.yaml:1:34: data.augment.pad: is for images that are not cropped"));
  EXPECT_THAT(error_of("augment: {jitter: {hue: 0.6}}"), HasSubstr("data.augment.jitter.hue"));
  EXPECT_THAT(error_of("evaluate: whole"),
              HasSubstr("data.evaluate: must be `auto`, {resize: pixels} or {side_ratio: share}"));
  EXPECT_THAT(error_of("evaluate: {resize: 256, side_ratio: 0.5}"), HasSubstr("must be `auto`"));
  EXPECT_THAT(error_of("evaluate: {size: 256}"), HasSubstr("data.evaluate.size: unknown key"));
  EXPECT_THAT(error_of("interpolation: cubic"), HasSubstr("data.interpolation"));
}

constexpr ImageShape network{224, 224, 3};

std::string conflict(const ImageTransform& options, std::optional<ImageShape> stored,
                     ImageShape out = network) {
  try {
    resolve(options, stored, out);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Resolve, ChoosesTheEvaluation) {
  EXPECT_EQ(resolve({}, {}, network).evaluate.side_ratio, 0.875);
  EXPECT_EQ(resolve({}, ImageShape{32, 32, 3}, network).evaluate.side_ratio, 0.875);
  EXPECT_EQ(resolve({}, network, network).evaluate.side_ratio, 1);
  EXPECT_EQ(resolve({.evaluate = {.resize = 256}}, {}, network).evaluate.side_ratio, 0);
}

TEST(CanBecome, GrayscaleOfTheNetworksSizeNeedsNoResizing) {
  EXPECT_TRUE(can_become({6, 5, 1}, {6, 5, 3}));
  EXPECT_TRUE(can_become({6, 5, 1}, {6, 5, 1}));
  EXPECT_FALSE(can_become({6, 5, 3}, {6, 5, 1}));
  EXPECT_FALSE(can_become({6, 5, 3}, {5, 6, 3}));
}

TEST(Resolve, RefusesWhatDoesNotFit) {
  const ImageShape small{32, 32, 3};
  EXPECT_EQ(
      conflict({.augment = {.pad = 4}}, {}),
      "data.augment.pad: is for images that have the network's input of 224 x 224; use data.augment.crop");
  EXPECT_EQ(conflict({.augment = {.pad = 4}}, small, small), "no error");
  EXPECT_EQ(conflict({.evaluate = {.resize = 200}}, {}),
            "data.evaluate.resize: 200 is less than the network's input of 224 x 224");
  EXPECT_THAT(conflict({.augment = {.jitter = {.hue = 0.1}}}, {}, {28, 28, 1}), HasSubstr("three channels"));
  EXPECT_THAT(conflict({.augment = {.pca = 0.1}}, {}, {28, 28, 1}), HasSubstr("three channels"));
  EXPECT_EQ(conflict({.augment = {.jitter = {.brightness = 0.1}}}, {}, {28, 28, 1}), "no error");
  EXPECT_EQ(conflict({}, {}, {28, 28, 4}), "network.input: images of 3 channels cannot become 4");
  EXPECT_EQ(conflict({}, ImageShape{28, 28, 1}, network), "no error");
}

TEST(Resolve, RefusesToResizeManyChannels) {
  const ImageShape many{32, 32, 513}, some{32, 32, 512}, five{32, 32, 5}, wide{32, 48, 513},
      large{64, 64, 513};
  const std::string refused =
      "network.input: images of 513 channels would be cropped or resized here; at most 512 channels can be";
  const CropOptions crop{.kind = CropOptions::Kind::random_resized};
  for (const ImageShape& shape : {many, wide}) {
    EXPECT_EQ(conflict({}, shape, shape), "no error");
    EXPECT_EQ(conflict({.augment = {.pad = 4, .mirror = true}}, shape, shape), "no error");
    EXPECT_EQ(conflict({.evaluate = {.side_ratio = 1}}, shape, shape), "no error");
    EXPECT_EQ(conflict({.evaluate = {.side_ratio = 0.9}}, shape, shape), refused);
    EXPECT_EQ(conflict({.evaluate = {.resize = 48}}, shape, shape), refused);
    EXPECT_EQ(conflict({.augment = {.crop = crop}}, shape, shape), refused);
  }
  EXPECT_EQ(conflict({.evaluate = {.resize = 32}}, many, many), "no error");
  EXPECT_EQ(conflict({.evaluate = {.side_ratio = 1}}, large, many), refused);
  EXPECT_EQ(conflict({.augment = {.crop = crop}}, some, some), "no error");
  ImageTransform area{.augment = {.crop = crop}, .interpolation = Interpolation::area};
  EXPECT_EQ(conflict(area, ImageShape{32, 32, 4}, {32, 32, 4}), "no error");
  EXPECT_EQ(conflict(area, five, five),
            "network.input: images of 5 channels would be cropped or resized here; with data.interpolation: "
            "area at most 4 channels can be");
  area.augment.crop = {};
  EXPECT_EQ(conflict(area, five, five), "no error");
}

}  // namespace
}  // namespace lpsgd
