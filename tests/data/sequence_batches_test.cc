// Batches of sequences as the loader delivers them: what is where, whatever the ranks and threads.
#include "data/sequence_batches.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "data/loader.h"

namespace lpsgd {
namespace {

/// Feature j of frame t of sequence s is 1000 s + t + j/4; its label is (s + t) mod 7.
class NumberedFrames final : public SequenceDataset {
 public:
  explicit NumberedFrames(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}
  std::int64_t size() const override { return std::ssize(lengths_); }
  std::int64_t classes() const override { return 7; }
  std::string name(std::int64_t i) const override { return fmt::format("sequence {}", i); }
  std::int64_t features() const override { return 2; }
  std::int64_t frames(std::int64_t i) const override { return lengths_[static_cast<std::size_t>(i)]; }
  void read(std::int64_t i, std::int64_t first, std::int64_t count, float* features,
            std::int32_t* labels) const override {
    for (std::int64_t t = first; t < first + count; ++t) {
      for (int j = 0; j < 2; ++j)
        *features++ = static_cast<float>(1000 * i + t) + 0.25f * static_cast<float>(j);
      *labels++ = static_cast<std::int32_t>((i + t) % 7);
    }
  }

 private:
  std::vector<std::int64_t> lengths_;
};

class CountedTokens final : public TextDataset {
 public:
  explicit CountedTokens(std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) tokens_.push_back(i);
  }
  std::int64_t size() const override { return std::ssize(tokens_) - 1; }
  std::int64_t classes() const override { return std::ssize(tokens_); }
  std::string name(std::int64_t i) const override { return fmt::format("token {}", i); }
  std::span<const std::int32_t> tokens() const override { return tokens_; }

 private:
  std::vector<std::int32_t> tokens_;
};

std::vector<std::int64_t> lengths(std::int64_t count) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(1 + i * 37 % 50);
  return out;
}

/// All that a batch holds, as numbers.
std::vector<double> numbers(const Batch& batch) {
  std::vector<double> out(batch.values.begin(), batch.values.end());
  out.insert(out.end(), batch.labels.begin(), batch.labels.end());
  out.insert(out.end(), batch.lengths.begin(), batch.lengths.end());
  out.insert(out.end(), batch.continues.begin(), batch.continues.end());
  out.push_back(static_cast<double>(batch.valid));
  return out;
}

struct Global {
  std::vector<double> values, labels, lengths, continues;
  std::vector<std::int64_t> frames;  // of each batch
  bool operator==(const Global&) const = default;
};

/// An epoch's global batches, put together from the ranks' parts.
Global epoch(const std::shared_ptr<const Dataset>& set, const DataOptions& data, int ranks, int workers,
             bool training, std::int64_t number = 1, std::int64_t micro_batches = 1) {
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int r = 0; r < ranks; ++r)
    loaders.push_back(std::make_unique<Loader>(make_batch_source(set, data,
                                                                 {.global_batch = 8,
                                                                  .rank = r,
                                                                  .ranks = ranks,
                                                                  .micro_batches = micro_batches,
                                                                  .seed = 3,
                                                                  .training = training}),
                                               LoaderOptions{.workers = workers}));
  for (auto& loader : loaders) loader->start(number);
  Global out;
  const auto append = [](std::vector<double>& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (std::int64_t b = 0; b < loaders[0]->batches(); b += micro_batches) {
    std::int64_t frames = 0, told = 0;
    for (std::size_t part = 0; part < loaders.size() * static_cast<std::size_t>(micro_batches); ++part) {
      Loader& loader = *loaders[part / static_cast<std::size_t>(micro_batches)];
      EXPECT_EQ(loader.batches(), loaders[0]->batches());
      const Batch batch = loader.next();
      append(out.values, batch.values);
      append(out.labels, batch.labels);
      append(out.lengths, batch.lengths);
      append(out.continues, batch.continues);
      for (const std::int32_t length : batch.lengths) frames += length;
      told = batch.global_frames;
    }
    EXPECT_EQ(told, frames);
    out.frames.push_back(frames);
  }
  return out;
}

TEST(SequenceBatches, AreTheSameForAnyNumberOfRanksAndWorkers) {
  const auto speech = std::make_shared<NumberedFrames>(lengths(45));
  const auto text = std::make_shared<CountedTokens>(403);
  for (const bool training : {true, false}) {
    for (const std::int64_t truncate : {0, 7}) {
      DataOptions data;
      data.truncate = truncate;
      data.sort_window = 2;
      std::vector<std::shared_ptr<const Dataset>> sets{speech};
      if (truncate > 0) sets.push_back(text);
      for (const auto& set : sets) {
        const Global one = epoch(set, data, 1, 1, training);
        EXPECT_GT(one.frames.size(), 4u);
        for (const int ranks : {2, 4, 8})
          for (const int workers : {1, 3}) EXPECT_EQ(epoch(set, data, ranks, workers, training), one);
        for (const std::int64_t parts : {2, 4}) EXPECT_EQ(epoch(set, data, 2, 1, training, 1, parts), one);
        EXPECT_EQ(epoch(set, data, 1, 1, training, 2) == one, !training || set == text);
      }
    }
  }
}

TEST(SequenceBatches, HoldPiecesWithZerosBehind) {
  const auto set = std::make_shared<NumberedFrames>(std::vector<std::int64_t>{5, 9, 2});
  DataOptions data;
  data.truncate = 4;
  Loader loader(make_batch_source(set, data, {.global_batch = 2, .training = false}), {});
  EXPECT_EQ(loader.shape().elements, 8);
  EXPECT_EQ(loader.shape().labels, 4);
  ASSERT_EQ(loader.batches(), 3);
  loader.start(0);
  Batch batch = loader.next();
  EXPECT_THAT(batch.lengths, testing::ElementsAre(4, 4));
  EXPECT_THAT(batch.continues, testing::ElementsAre(0, 0));
  EXPECT_EQ(batch.values[8 + 2 * 3 + 1], 1003.25f);
  batch = loader.next();
  EXPECT_THAT(batch.lengths, testing::ElementsAre(1, 4));
  EXPECT_THAT(batch.continues, testing::ElementsAre(1, 1));
  EXPECT_THAT(std::vector(batch.values.begin(), batch.values.begin() + 8),
              testing::ElementsAre(4, 4.25, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(std::vector(batch.labels.begin(), batch.labels.begin() + 4), testing::ElementsAre(4, 0, 0, 0));
  batch = loader.next();
  EXPECT_THAT(batch.lengths, testing::ElementsAre(2, 1));
  EXPECT_THAT(batch.continues, testing::ElementsAre(0, 1));
  EXPECT_EQ(batch.global_frames, 3);
  EXPECT_EQ(batch.valid, 2);
}

TEST(SequenceBatches, TextPredictsTheNextToken) {
  DataOptions data;
  data.truncate = 3;
  Loader loader(make_batch_source(std::make_shared<CountedTokens>(18), data, {.global_batch = 2}), {});
  ASSERT_EQ(loader.batches(), 2);
  loader.start(0);
  EXPECT_THAT(loader.next().values, testing::ElementsAre(0, 1, 2, 8, 9, 10));
  const Batch batch = loader.next();
  EXPECT_THAT(batch.values, testing::ElementsAre(3, 4, 5, 11, 12, 13));
  EXPECT_THAT(batch.labels, testing::ElementsAre(4, 5, 6, 12, 13, 14));
  EXPECT_THAT(batch.continues, testing::ElementsAre(1, 1));
}

TEST(SequenceBatches, TextIsEvaluatedToItsLastToken) {
  DataOptions data;
  data.truncate = 5;
  for (const int count : {2, 3, 9, 52}) {
    const Global all = epoch(std::make_shared<CountedTokens>(count), data, 2, 2, false);
    std::vector<double> labels = all.labels;
    std::erase(labels, 0);  // padding; no token's label is 0
    std::sort(labels.begin(), labels.end());
    std::vector<double> expected;
    for (int i = 1; i < count; ++i) expected.push_back(i);
    EXPECT_EQ(labels, expected);
  }
}

TEST(SequenceBatches, ResumingAtABatchEqualsSkipping) {
  const auto set = std::make_shared<NumberedFrames>(lengths(60));
  for (const std::int64_t truncate : {0, 10}) {
    DataOptions data;
    data.truncate = truncate;
    const auto loader = [&] {
      return std::make_unique<Loader>(
          make_batch_source(set, data, {.global_batch = 6, .rank = 1, .ranks = 2}),
          LoaderOptions{.workers = 2});
    };
    const auto whole = loader(), resumed = loader();
    whole->start(2);
    for (int b = 0; b < 3; ++b) whole->next();
    resumed->start(2, 3);
    for (std::int64_t b = 3; b < whole->batches(); ++b)
      EXPECT_EQ(numbers(whole->next()), numbers(resumed->next()));
  }
}

std::string error_of(const std::shared_ptr<const Dataset>& set, const DataOptions& data,
                     const BatchOptions& options) {
  try {
    make_batch_source(set, data, options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(SequenceBatches, RefusesWhatDoesNotFit) {
  const auto speech = std::make_shared<NumberedFrames>(lengths(20));
  const auto text = std::make_shared<CountedTokens>(20);
  DataOptions data;
  data.dataset = "it";
  EXPECT_EQ(error_of(speech, data, {.global_batch = 4, .input = {50, 2}}), "no error");
  EXPECT_EQ(error_of(speech, data, {.global_batch = 4, .input = {40, 2}}),
            "data.dataset: the longest sequence of it has 49 frames, but the network takes 40; `input: [any, "
            "2]` takes "
            "what the data has, and data.truncate cuts sequences");
  EXPECT_EQ(error_of(speech, data, {.global_batch = 4, .input = {50, 3}}),
            "data.dataset: frames of it have 2 features, the network takes 3");
  EXPECT_EQ(error_of(speech, data, {.global_batch = 4, .input = {50}}),
            "data.dataset: it has feature vectors, and the network does not take them");
  EXPECT_EQ(error_of(text, data, {.global_batch = 4}),
            "data.truncate: missing: a text is one long sequence; after how many tokens to cut it");
  data.truncate = 5;
  EXPECT_EQ(error_of(text, data, {.global_batch = 4, .input = {4}}),
            "data.truncate: 5 frames, but the network takes 4");
  EXPECT_EQ(error_of(text, data, {.global_batch = 4, .input = {5, 2}}),
            "data.dataset: it has tokens, and the network does not take them");
  EXPECT_EQ(
      error_of(text, data, {.global_batch = 8}),
      "train.batch_size: 19 tokens of the training text are fewer than 8 sequences of 5 (train.batch_size "
      "and data.truncate)");
}

}  // namespace
}  // namespace lpsgd
