// The configuration's section `data`: what it reads, writes and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/dataset.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

DataOptions read(const std::string& text) {
  DataOptions options;
  config::read(config::parse_text(text, "a.yaml"), "data", options);
  return options;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(DataOptions, ReadsEveryKeyAndWritesThemBack) {
  const std::string text =
      "{dataset: shapes, root: 'x/y', shuffle: false, augment: {pad: 4, mirror: true}, mean: [0.1, 0.2, "
      "0.3], "
      "std: [1, 2, 3], train_samples: 70, test_samples: 20, workers: 6, prefetch: 5, on_bad_sample: skip}";
  const DataOptions first = read(text);
  for (const DataOptions& options : {first, read(config::emit(config::write(first)))}) {
    EXPECT_EQ(options.dataset, "shapes");
    EXPECT_EQ(options.root, "x/y");
    EXPECT_FALSE(options.shuffle);
    EXPECT_EQ(options.augment.pad, 4);
    EXPECT_TRUE(options.augment.mirror);
    EXPECT_THAT(options.mean, testing::ElementsAre(0.1, 0.2, 0.3));
    EXPECT_THAT(options.std, testing::ElementsAre(1, 2, 3));
    EXPECT_EQ(options.train_samples, 70);
    EXPECT_EQ(options.test_samples, 20);
    EXPECT_EQ(options.workers, 6);
    EXPECT_EQ(options.prefetch, 5);
    EXPECT_EQ(options.on_bad_sample, OnBadSample::skip);
  }
}

TEST(DataOptions, AugmentNoneIsTheDefault) {
  for (const char* text : {"{dataset: cifar10}", "{dataset: cifar10, augment: none}"}) {
    const DataOptions first = read(text);
    for (const DataOptions& options : {first, read(config::emit(config::write(first)))}) {
      EXPECT_EQ(options.dataset, "cifar10");
      EXPECT_TRUE(options.shuffle);
      EXPECT_EQ(options.augment.pad, 0);
      EXPECT_FALSE(options.augment.mirror);
      EXPECT_TRUE(options.mean.empty());
    }
  }
}

TEST(DataOptions, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(error_of("{root: x}"), HasSubstr("dataset"));
  EXPECT_THAT(error_of("{dataset: cifar11}"),
              HasSubstr("a.yaml:1:11: data.dataset: 'cifar11' is not known, did you mean 'cifar10'?"));
  EXPECT_THAT(
      error_of("{dataset: shapes, augment: flip}"),
      HasSubstr("a.yaml:1:28: data.augment: must be `none` or a map of pad, mirror, crop, jitter and pca"));
  EXPECT_THAT(error_of("{dataset: shapes, augment: {pad: -1}}"), HasSubstr("data.augment.pad"));
  EXPECT_THAT(error_of("{dataset: shapes, augment: {pads: 1}}"), HasSubstr("did you mean 'pad'"));
  EXPECT_THAT(error_of("{dataset: shapes, train_samples: -5}"), HasSubstr("data.train_samples"));
  EXPECT_THAT(error_of("{dataset: shapes, shuffel: true}"), HasSubstr("did you mean 'shuffle'"));
}

TEST(Normalization, IsTheOptionsOrTheDataSetsOwn) {
  DataOptions options;
  options.dataset = "cifar10";
  EXPECT_THAT(normalization(options, 3).mean, testing::ElementsAre(0.4914, 0.4822, 0.4465));
  EXPECT_THAT(normalization(options, 3).std, testing::ElementsAre(0.2470, 0.2435, 0.2616));
  options.std = {1, 1, 2};
  EXPECT_THAT(normalization(options, 3).std, testing::ElementsAre(1, 1, 2));
}

TEST(Normalization, RefusesWhatDoesNotFitTheImages) {
  const auto error = [](std::vector<double> mean, std::vector<double> std) -> std::string {
    DataOptions options;
    options.dataset = "shapes";
    options.mean = std::move(mean);
    options.std = std::move(std);
    try {
      normalization(options, 3);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error({0.5}, {}), "data.mean: 1 value, but the network takes images of 3 channels");
  EXPECT_EQ(error({}, {1, 1}), "data.std: 2 values, but the network takes images of 3 channels");
  DataOptions digits;
  digits.dataset = "mnist";  // grey images, which a network of colours takes three times
  EXPECT_EQ(normalization(digits, 3).mean, std::vector<double>(3, normalization(digits, 1).mean[0]));
  EXPECT_EQ(normalization(digits, 3).std, std::vector<double>(3, normalization(digits, 1).std[0]));
  EXPECT_EQ(error({}, {1, 0, 1}), "data.std: 0 is not above 0");
  EXPECT_EQ(error({}, {1, -1, 1}), "data.std: -1 is not above 0");
  EXPECT_EQ(error({}, {1, 1e-60, 1}), "data.std: 1e-60 is not above 0");
}

}  // namespace
}  // namespace lpsgd
