// Batches of images against a slow reference that pads, crops and mirrors one pixel at a time.
#include "data/image_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "core/error.h"
#include "core/philox.h"
#include "data/loader.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

using Pixels = std::vector<std::uint8_t>;

constexpr std::int64_t height = 6, width = 5, channels = 2, image_size = height * width * channels;

/// Every pixel encodes its position and sample; the label is the number of the sample.
class Numbered final : public ImageDataset {
 public:
  explicit Numbered(std::int64_t size) : size_(size), images_(static_cast<std::size_t>(size * image_size)) {
    for (std::size_t i = 0; i < images_.size(); ++i) images_[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
  }
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return size_; }
  std::string name(std::int64_t i) const override { return "image " + std::to_string(i); }
  std::optional<ImageShape> fixed_shape() const override { return ImageShape{height, width, channels}; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    ++reads;
    if (broken.contains(i)) throw FileError(name(i) + ": cannot be decoded");
    return {std::span(images_).subspan(static_cast<std::size_t>(i * image_size), image_size), fixed_shape()};
  }
  std::int32_t label(std::int64_t i) const override { return static_cast<std::int32_t>(i); }

  std::set<std::int64_t> broken;
  mutable std::atomic<std::int64_t> reads = 0;

 private:
  std::int64_t size_;
  std::vector<std::uint8_t> images_;
};

DataOptions data_options(std::int64_t pad, bool mirror, bool shuffle = true) {
  DataOptions options;
  options.shuffle = shuffle;
  options.augment = {.pad = pad, .mirror = mirror};
  return options;
}

/// A loader with one thread, or as given.
class TestLoader : public Loader {
 public:
  TestLoader(std::shared_ptr<const Dataset> set, const DataOptions& data, const BatchOptions& batches,
             const LoaderOptions& options = {})
      : Loader(make_batch_source(std::move(set), data, batches), options) {}
};

/// What sample `s` must look like in epoch `epoch`.
Pixels reference(const ImageDataset& set, const DataOptions& options, std::uint32_t seed, std::int64_t s,
                 std::int64_t epoch, bool augment) {
  const std::int64_t pad = augment ? options.augment.pad : 0;
  PhiloxSequence random(seed, RandomUse::augmentation, static_cast<std::uint32_t>(s),
                        static_cast<std::uint32_t>(epoch));
  const std::int64_t down = random.below(static_cast<std::uint32_t>(2 * pad + 1));
  const std::int64_t across = random.below(static_cast<std::uint32_t>(2 * pad + 1));
  const bool flip = augment && options.augment.mirror && random.next() % 2 == 1;
  Pixels out;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t row = y + down - pad, column = (flip ? width - 1 - x : x) + across - pad;
      for (std::int64_t c = 0; c < channels; ++c) {
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        const auto at = static_cast<std::size_t>((row * width + column) * channels + c);
        out.push_back(inside ? pixels_of(set, s)[at] : 0);
      }
    }
  }
  return out;
}

/// Sample i of the batch: its pixels after its crop, as core/pixels.h defines it.
Pixels image_of(const Batch& batch, std::int64_t i) {
  const auto stored = batch.pixels.subspan(static_cast<std::size_t>(i * image_size), image_size);
  const PixelCrop crop = batch.crops[static_cast<std::size_t>(i)];
  Pixels out;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t row = y + crop.down, column = (crop.mirrored ? width - 1 - x : x) + crop.across;
      const bool inside = row >= 0 && row < height && column >= 0 && column < width;
      for (std::int64_t c = 0; c < channels; ++c)
        out.push_back(inside ? stored[static_cast<std::size_t>((row * width + column) * channels + c)] : 0);
    }
  }
  return out;
}

struct LoadedBatch {
  std::vector<std::int64_t> samples;      // in order
  std::map<std::int64_t, Pixels> images;  // by sample
};

/// The batches of an epoch, each with the samples of all ranks in the order of ranks.
std::vector<LoadedBatch> collect(const std::shared_ptr<const ImageDataset>& set, const DataOptions& data,
                                 std::int64_t batch, int ranks, std::int64_t epoch, bool training,
                                 std::int64_t micro_batches = 1) {
  std::vector<LoadedBatch> loaded;
  for (int rank = 0; rank < ranks; ++rank) {
    TestLoader loader(set, data,
                      {.global_batch = batch,
                       .rank = rank,
                       .ranks = ranks,
                       .micro_batches = micro_batches,
                       .seed = 5,
                       .training = training});
    loader.start(epoch);
    for (std::int64_t b = 0; b < loader.batches(); ++b) {
      const auto whole = static_cast<std::size_t>(b / micro_batches);
      if (whole == loaded.size()) loaded.emplace_back();
      const Batch got = loader.next();
      const std::int64_t samples = batch / ranks / micro_batches;
      EXPECT_EQ(got.micro_batch, b % micro_batches);
      EXPECT_EQ(got.pixels.size(), static_cast<std::size_t>(samples * image_size));
      EXPECT_EQ(got.labels.size(), static_cast<std::size_t>(samples));
      LoadedBatch& all = loaded[whole];
      for (std::int64_t i = 0; i < got.valid; ++i) {
        const std::int64_t sample = got.labels[static_cast<std::size_t>(i)];
        all.samples.push_back(sample);
        EXPECT_TRUE(all.images.emplace(sample, image_of(got, i)).second) << "twice: " << sample;
      }
    }
  }
  return loaded;
}

TEST(EpochOrder, IsAPermutationOfSeedAndEpoch) {
  for (const std::int64_t size : {0, 1, 2, 97, 1000}) {
    auto order = epoch_order(size, true, 3, 7);
    EXPECT_EQ(order, epoch_order(size, true, 3, 7));
    if (size > 90) {
      EXPECT_NE(order, epoch_order(size, true, 3, 8));
      EXPECT_NE(order, epoch_order(size, true, 4, 7));
      EXPECT_NE(order, epoch_order(size, false, 3, 7));
    }
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, epoch_order(size, false, 3, 7));
  }
}

TEST(EpochOrder, IsFairToEveryPermutation) {
  std::map<std::vector<std::int64_t>, int> counts;
  const int epochs = 24000;
  for (int e = 0; e < epochs; ++e) ++counts[epoch_order(4, true, 1, e)];
  ASSERT_EQ(counts.size(), 24u);
  double chi2 = 0;
  for (const auto& [order, n] : counts) chi2 += (n - epochs / 24.0) * (n - epochs / 24.0) / (epochs / 24.0);
  EXPECT_LT(chi2, 49.7);  // 23 degrees of freedom, p = 0.001
}

TEST(ImageBatches, UnshuffledBatchesAreContiguousAndSplitByRank) {
  const auto set = std::make_shared<Numbered>(50);
  for (int rank = 0; rank < 4; ++rank) {
    TestLoader loader(set, data_options(0, false, false), {.global_batch = 12, .rank = rank, .ranks = 4});
    ASSERT_EQ(loader.batches(), 4);
    loader.start(0);
    for (int b = 0; b < 4; ++b) {
      const Batch batch = loader.next();
      const int base = b * 12 + rank * 3;
      EXPECT_THAT(batch.labels, testing::ElementsAre(base, base + 1, base + 2));
      EXPECT_EQ(batch.valid, 3);
    }
  }
}

// Also of the last batch in evaluation, which is shorter.
TEST(ImageBatches, MicroBatchesAreABatchsPartsInOrder) {
  const auto set = std::make_shared<Numbered>(103);
  const DataOptions data = data_options(2, true);
  for (const bool training : {true, false})
    for (const int ranks : {1, 2}) {
      const auto whole = collect(set, data, 20, ranks, 1, training);
      ASSERT_EQ(whole.size(), training ? 5u : 6u);
      for (const std::int64_t parts : {2, 5}) {
        const auto got = collect(set, data, 20, ranks, 1, training, parts);
        ASSERT_EQ(got.size(), whole.size());
        for (std::size_t b = 0; b < got.size(); ++b) {
          EXPECT_EQ(got[b].samples, whole[b].samples);
          EXPECT_EQ(got[b].images, whole[b].images);
        }
      }
    }
  TestLoader loader(set, data, {.global_batch = 20, .micro_batches = 5, .seed = 5});
  EXPECT_EQ(loader.batches(), 25);
  loader.start(1, 7);  // the third part of the second batch
  EXPECT_EQ(loader.next().micro_batch, 2);
  EXPECT_THROW(make_batch_source(set, data, {.global_batch = 20, .ranks = 2, .micro_batches = 4}),
               ConfigError);
}

TEST(ImageBatches, TrainingBatchesAreTheSameForAnyNumberOfRanks) {
  const auto set = std::make_shared<Numbered>(103);
  const DataOptions data = data_options(2, true);
  for (const std::int64_t epoch : {0, 3}) {
    const auto order = epoch_order(103, true, 5, epoch);
    for (const int ranks : {1, 2, 4}) {
      const auto loaded = collect(set, data, 20, ranks, epoch, true);
      ASSERT_EQ(loaded.size(), 5u);
      std::set<std::int64_t> once;
      for (std::size_t b = 0; b < loaded.size(); ++b) {
        const auto from = order.begin() + static_cast<std::ptrdiff_t>(b * 20);
        EXPECT_EQ(loaded[b].samples, std::vector<std::int64_t>(from, from + 20)) << ranks << " ranks";
        once.insert(loaded[b].samples.begin(), loaded[b].samples.end());
        for (const auto& [sample, image] : loaded[b].images)
          ASSERT_EQ(image, reference(*set, data, 5, sample, epoch, true)) << "sample " << sample;
      }
      EXPECT_EQ(once.size(), 100u);
    }
  }
}

TEST(ImageBatches, EveryAugmentationMatchesTheReference) {
  const auto set = std::make_shared<Numbered>(40);
  // Pads beyond the image make crops that are black throughout.
  for (const std::int64_t pad : {0, 1, 4, 9}) {
    for (const bool mirror : {false, true}) {
      const DataOptions data = data_options(pad, mirror);
      const auto loaded = collect(set, data, 8, 1, 1, true);
      ASSERT_EQ(loaded.size(), 5u);
      for (const LoadedBatch& batch : loaded)
        for (const auto& [sample, image] : batch.images)
          ASSERT_EQ(image, reference(*set, data, 5, sample, 1, true))
              << "pad " << pad << ", sample " << sample;
    }
  }
}

TEST(ImageBatches, AugmentationChangesWithEpochAndIsSpreadEvenly) {
  const auto set = std::make_shared<Numbered>(400);
  const DataOptions data = data_options(1, true, false);
  std::map<Pixels, int> versions;  // of sample 0 over epochs: 9 crops, each mirrored or not
  TestLoader loader(set, data, {.global_batch = 1, .seed = 9});
  for (int epoch = 0; epoch < 400; ++epoch) {
    loader.start(epoch);
    ++versions[image_of(loader.next(), 0)];
  }
  EXPECT_EQ(versions.size(), 18u);
  for (const auto& [image, count] : versions) EXPECT_GT(count, 4);
}

TEST(ImageBatches, EvaluationCoversEverySampleOnceInOrderWithoutAugmentation) {
  const DataOptions data = data_options(2, true);
  for (const std::int64_t size : {1, 2, 16, 17, 23}) {
    const auto set = std::make_shared<Numbered>(size);
    for (const int ranks : {1, 2, 4}) {
      std::multiset<std::int64_t> all;
      for (const LoadedBatch& batch : collect(set, data, 8, ranks, 2, false)) {
        all.insert(batch.samples.begin(), batch.samples.end());
        for (const auto& [sample, image] : batch.images)
          ASSERT_EQ(image, reference(*set, data, 5, sample, 2, false));
      }
      const auto expected = epoch_order(size, false, 0, 0);
      EXPECT_THAT(all, testing::ElementsAreArray(expected)) << size << " samples, " << ranks << " ranks";
    }
  }
}

TEST(ImageBatches, EvaluationPadsTheLastBatchWithZeros) {
  TestLoader loader(std::make_shared<Numbered>(11), data_options(0, false),
                    {.global_batch = 4, .training = false}, {.prefetch = 1});
  ASSERT_EQ(loader.batches(), 3);
  loader.start(0);
  for (int b = 0; b < 2; ++b) EXPECT_EQ(loader.next().valid, 4);
  const Batch last = loader.next();
  EXPECT_EQ(last.valid, 3);
  EXPECT_THAT(last.labels, testing::ElementsAre(8, 9, 10, 0));
  EXPECT_THAT(image_of(last, 3), testing::Each(0));
}

TEST(ImageBatches, ResumingAtABatchEqualsSkipping) {
  const auto set = std::make_shared<Numbered>(64);
  const DataOptions data = data_options(2, true);
  const BatchOptions options{.global_batch = 8, .rank = 1, .ranks = 2};
  TestLoader whole(set, data, options), resumed(set, data, options);
  for (const std::int64_t first : {0, 1, 5, 7}) {
    whole.start(3);
    for (std::int64_t b = 0; b < first; ++b) whole.next();
    resumed.start(3, first);
    for (std::int64_t b = first; b < whole.batches(); ++b) {
      const Batch a = whole.next(), c = resumed.next();
      EXPECT_TRUE(std::ranges::equal(a.pixels, c.pixels));
      EXPECT_TRUE(std::ranges::equal(a.crops, c.crops));
      EXPECT_TRUE(std::equal(a.labels.begin(), a.labels.end(), c.labels.begin(), c.labels.end()));
    }
    EXPECT_THROW(resumed.next(), Error);
  }
}

TEST(ImageBatches, StartDropsARunningEpochAtAnyPoint) {
  const auto set = std::make_shared<Numbered>(64);
  const DataOptions data = data_options(2, true);
  TestLoader loader(set, data, {.global_batch = 4, .seed = 5}, {.prefetch = 2});
  for (int round = 0; round < 200; ++round) {
    loader.start(round);
    for (int b = 0; b < round % 5; ++b) {
      const Batch batch = loader.next();
      const auto order = epoch_order(64, true, 5, round);
      ASSERT_EQ(batch.labels[0], order[static_cast<std::size_t>(b * 4)]);
      ASSERT_EQ(image_of(batch, 0), reference(*set, data, 5, batch.labels[0], round, true));
    }
  }
}

TEST(ImageBatches, ABatchStaysUntilTheNextIsAsked) {
  TestLoader loader(std::make_shared<Numbered>(40), data_options(0, false, false), {.global_batch = 2},
                    {.prefetch = 1});
  loader.start(0);
  Batch held = loader.next();
  for (int b = 1; b < 20; ++b) {
    for (int spin = 0; spin < 1000; ++spin) {
      ASSERT_EQ(held.labels[0], 2 * b - 2);
      ASSERT_EQ(held.labels[1], 2 * b - 1);
    }
    held = loader.next();
  }
}

TEST(ImageBatches, PassesOnWhatFailedOnItsThread) {
  auto set = std::make_shared<Numbered>(20);
  set->broken = {9};
  TestLoader loader(set, data_options(0, false, false), {.global_batch = 4});
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.start(epoch);
    EXPECT_EQ(loader.next().labels[0], 0);
    EXPECT_EQ(loader.next().labels[0], 4);
    EXPECT_THROW(loader.next(), FileError);
    EXPECT_THROW(loader.next(), FileError);
  }
}

DataOptions skipping(std::int64_t pad) {
  DataOptions options = data_options(pad, true, false);
  options.on_bad_sample = OnBadSample::skip;
  return options;
}

TEST(BadSamples, AreReplacedByTheNextGoodOneInTraining) {
  auto set = std::make_shared<Numbered>(20);
  set->broken = {5, 6, 19, 0};
  const DataOptions data = skipping(2);
  for (const int ranks : {1, 2, 4}) {
    std::vector<std::string> bad;
    std::vector<std::int64_t> samples;
    for (int rank = 0; rank < ranks; ++rank) {
      TestLoader loader(set, data, {.global_batch = 20, .rank = rank, .ranks = ranks, .seed = 5},
                        {.workers = 2});
      loader.start(1);
      const Batch batch = loader.next();
      bad.insert(bad.end(), batch.bad_samples.begin(), batch.bad_samples.end());
      for (std::size_t i = 0; i < batch.labels.size(); ++i) {
        samples.push_back(batch.labels[i]);
        EXPECT_EQ(image_of(batch, static_cast<std::int64_t>(i)),
                  reference(*set, data, 5, batch.labels[i], 1, true))
            << "with the draws of the sample that is read";
      }
    }
    EXPECT_THAT(samples,
                testing::ElementsAre(1, 1, 2, 3, 4, 7, 7, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 1));
    EXPECT_THAT(bad, testing::ElementsAre("image 0: cannot be decoded", "image 5: cannot be decoded",
                                          "image 6: cannot be decoded", "image 19: cannot be decoded"));
  }
}

TEST(BadSamples, DoNotCountInEvaluation) {
  auto set = std::make_shared<Numbered>(7);
  set->broken = {1, 6};
  TestLoader loader(set, skipping(0), {.global_batch = 4, .training = false});
  loader.start(0);
  const Batch first = loader.next();
  EXPECT_THAT(first.labels, testing::ElementsAre(0, -1, 2, 3));
  EXPECT_THAT(image_of(first, 1), testing::Each(0));
  EXPECT_THAT(first.bad_samples, testing::ElementsAre("image 1: cannot be decoded"));
  const Batch last = loader.next();
  EXPECT_EQ(last.valid, 3);
  EXPECT_THAT(last.labels, testing::ElementsAre(4, 5, -1, 0));
}

/// Each is read once for its own turn, and at most once more behind another bad one.
TEST(BadSamples, ManyInARowAreNotReadForEachOther) {
  auto set = std::make_shared<Numbered>(400);
  for (std::int64_t i = 20; i < 380; ++i) set->broken.insert(i);
  TestLoader loader(set, skipping(0), {.global_batch = 400});
  for (const std::int64_t epoch : {0, 1}) {
    set->reads = 0;
    loader.start(epoch);
    EXPECT_EQ(loader.next().bad_samples.size(), 360u);
    EXPECT_LE(set->reads, 400 + 360 + 360);
  }
}

TEST(BadSamples, AreAnErrorIfThereAreNoOthers) {
  auto set = std::make_shared<Numbered>(3);
  set->broken = {0, 1, 2};
  TestLoader loader(set, skipping(0), {.global_batch = 3});
  loader.start(0);
  try {
    loader.next();
    FAIL() << "no error";
  } catch (const FileError& e) {
    EXPECT_STREQ(
        e.what(),
        "image 0: cannot be decoded (data.on_bad_sample: skip finds no other: all 3 samples are bad)");
  }
}

std::string error_of(std::int64_t size, const DataOptions& data, const BatchOptions& options) {
  try {
    make_batch_source(std::make_shared<Numbered>(size), data, options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(ImageBatches, RefusesWhatCannotBeLoaded) {
  DataOptions data = data_options(0, false);
  EXPECT_EQ(error_of(100, data, {.global_batch = 32, .ranks = 3}),
            "train.batch_size: 32 samples cannot be shared equally by 3 ranks");
  EXPECT_EQ(error_of(31, data, {.global_batch = 32}),
            "train.batch_size: the training set has 31 samples, fewer than one global batch of 32");
  EXPECT_EQ(error_of(31, data, {.global_batch = 32, .training = false}), "no error");
  data.dataset = "numbered";
  EXPECT_EQ(error_of(100, data, {.global_batch = 32, .input = {6, 5, 3}}),
            "network.input: the images of data set numbered are (6, 5, 2); data.evaluate can resize them");
}

TEST(ImageBatches, NeedsAStartedEpoch) {
  TestLoader loader(std::make_shared<Numbered>(4), data_options(0, false), {.global_batch = 4});
  EXPECT_THROW(loader.next(), Error);
  EXPECT_THROW(loader.start(0, 2), Error);
}

}  // namespace
}  // namespace lpsgd
