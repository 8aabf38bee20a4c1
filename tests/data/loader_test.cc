// The loader's threads: whatever their number and timing, batches have the same content, and an error is that
// of the first sample that fails.
#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "core/checksum.h"
#include "core/error.h"
#include "core/philox.h"
#include "data/jpeg_encoder.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

constexpr std::int64_t elements = 40 << 10;  // a thread takes one sample at a time

/// Samples that say which they are, after a while. Some fail.
class Slow final : public BatchSource {
 public:
  struct Options {
    std::int64_t samples = 7, batches = 5, valid_of_last = 7;
    std::vector<std::int64_t> failing = {};  // numbers in the epoch
    std::vector<std::int64_t> bad = {};      // replaced
    std::int64_t fails_to_begin = -1;        // an epoch
  };
  explicit Slow(Options options) : o_(std::move(options)) {}
  BatchShape shape() const override {
    return {.samples = o_.samples, .image = ImageShape{elements, 1, 1}, .elements = elements};
  }
  std::int64_t batches() const override { return o_.batches; }
  void begin_epoch(std::int64_t epoch) override {
    EXPECT_EQ(filling_, 0);
    if (epoch == o_.fails_to_begin) throw FileError("no such epoch");
    epoch_ = epoch;
  }
  BatchCounts counts(std::int64_t batch) const override {
    return {.valid = batch == o_.batches - 1 ? o_.valid_of_last : o_.samples, .global_frames = batch + 100};
  }
  std::unique_ptr<Worker> make_worker() const override { return std::make_unique<Worker>(); }
  void fill(Worker& worker, std::int64_t batch, std::int64_t position, const SampleView& out) const override {
    ++filling_;
    const std::int64_t number = batch * o_.samples + position;
    std::this_thread::sleep_for(std::chrono::microseconds((number * 7919 + epoch_ * 104729) % 400));
    --filling_;
    if (std::ranges::count(o_.failing, number) > 0) throw FileError("sample " + std::to_string(number));
    if (std::ranges::count(o_.bad, number) > 0) worker.bad_samples.push_back("bad " + std::to_string(number));
    *out.labels = static_cast<std::int32_t>(number);
    out.pixels[0] = static_cast<std::uint8_t>(epoch_);
    out.pixels[elements - 1] = static_cast<std::uint8_t>(number);
  }

 private:
  Options o_;
  std::int64_t epoch_ = -1;
  mutable std::atomic<int> filling_ = 0;
};

std::unique_ptr<Loader> slow(const Slow::Options& options, int workers, std::int64_t prefetch = 3) {
  return std::make_unique<Loader>(std::make_unique<Slow>(options),
                                  LoaderOptions{.workers = workers, .prefetch = prefetch});
}

void expect_batch(const Batch& batch, std::int64_t number, std::int64_t epoch, const Slow::Options& o) {
  const bool last = number == o.batches - 1;
  EXPECT_EQ(batch.valid, last ? o.valid_of_last : o.samples);
  EXPECT_EQ(batch.global_frames, number + 100);
  ASSERT_EQ(batch.labels.size(), static_cast<std::size_t>(o.samples));
  EXPECT_TRUE(batch.values.empty() && batch.crops.empty() && batch.lengths.empty());
  for (std::int64_t i = 0; i < o.samples; ++i) {
    const std::int64_t sample = number * o.samples + i;
    const std::uint8_t* pixels = batch.pixels.data() + i * elements;
    const bool valid = i < batch.valid;
    EXPECT_EQ(batch.labels[static_cast<std::size_t>(i)], valid ? sample : 0);
    EXPECT_EQ(pixels[0], valid ? epoch : 0) << "batch " << number << " sample " << i;
    EXPECT_EQ(pixels[elements - 1], valid ? static_cast<std::uint8_t>(sample) : 0);
  }
}

class Workers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Loader, Workers, testing::Values(1, 2, 3, 5));

TEST_P(Workers, FillBatchesInOrder) {
  for (const std::int64_t prefetch : {1, 2, 5}) {
    const Slow::Options options{.valid_of_last = 3};
    const auto loader = slow(options, GetParam(), prefetch);
    for (const std::int64_t epoch : {1, 2, 3}) {
      const std::int64_t first = epoch == 2 ? 3 : 0;
      loader->start(epoch, first);
      for (std::int64_t b = first; b < loader->batches(); ++b)
        expect_batch(loader->next(), b, epoch, options);
      EXPECT_THROW(loader->next(), Error);
    }
  }
}

TEST_P(Workers, LeaveADroppedEpoch) {
  const Slow::Options options;
  const auto loader = slow(options, GetParam(), 2);
  for (std::int64_t epoch = 0; epoch < 60; ++epoch) {
    loader->start(epoch, epoch % 5);
    for (std::int64_t b = epoch % 5; b < std::min<std::int64_t>(5, epoch % 5 + epoch % 3); ++b)
      expect_batch(loader->next(), b, epoch, options);
  }
}

// Sample 17 takes longer than those behind it, which fail, too.
TEST_P(Workers, TellTheFirstFailure) {
  const Slow::Options options{.failing = {17, 18, 19, 20, 24}};
  const auto loader = slow(options, GetParam(), 5);
  for (int round = 0; round < 10; ++round) {
    loader->start(round);
    expect_batch(loader->next(), 0, round, options);
    expect_batch(loader->next(), 1, round, options);
    for (int again = 0; again < 2; ++again) {
      try {
        loader->next();
        FAIL() << "no error";
      } catch (const FileError& e) {
        EXPECT_STREQ(e.what(), "sample 17");
      }
    }
  }
}

TEST_P(Workers, TellAnEpochThatCannotBegin) {
  const Slow::Options options{.fails_to_begin = 1};
  const auto loader = slow(options, GetParam());
  loader->start(0);
  expect_batch(loader->next(), 0, 0, options);
  loader->start(1);
  EXPECT_THROW(loader->next(), FileError);
  loader->start(2);
  expect_batch(loader->next(), 0, 2, options);
}

TEST_P(Workers, ReportBadSamplesInOrder) {
  const Slow::Options options{.bad = {6, 1, 4, 20}};
  const auto loader = slow(options, GetParam());
  for (int round = 0; round < 3; ++round) {
    loader->start(round);
    EXPECT_THAT(loader->next().bad_samples, testing::ElementsAre("bad 1", "bad 4", "bad 6"));
    EXPECT_THAT(loader->next().bad_samples, testing::IsEmpty());
    EXPECT_THAT(loader->next().bad_samples, testing::ElementsAre("bad 20"));
    EXPECT_THAT(loader->next().bad_samples, testing::IsEmpty());
    EXPECT_THAT(loader->next().bad_samples, testing::IsEmpty());
  }
}

/// A digest of all that the batches of an epoch from `first` on hold, in the order of the global batch.
std::vector<std::uint64_t> digests(const std::shared_ptr<const Dataset>& set, const DataOptions& data,
                                   int ranks, int workers, std::int64_t epoch, std::int64_t first,
                                   const std::vector<std::int64_t>& input = {}) {
  const std::int64_t global_batch = input.empty() ? 48 : 12;
  std::vector<std::vector<std::byte>> bytes;
  for (int rank = 0; rank < ranks; ++rank) {
    Loader loader(
        make_batch_source(
            set, data,
            {.global_batch = global_batch, .rank = rank, .ranks = ranks, .seed = 9, .input = input}),
        {.workers = workers});
    loader.start(epoch, first);
    bytes.resize(static_cast<std::size_t>(loader.batches() - first));
    for (std::vector<std::byte>& to : bytes) {
      const Batch batch = loader.next();
      for (std::size_t i = 0; i < batch.labels.size(); ++i) {
        const std::size_t image = batch.pixels.size() / batch.labels.size();
        const auto append = [&](auto span) {
          to.insert(to.end(), std::as_bytes(span).begin(), std::as_bytes(span).end());
        };
        append(batch.pixels.subspan(i * image, image));
        append(batch.crops.subspan(i, 1));
        append(batch.labels.subspan(i, 1));
      }
    }
  }
  std::vector<std::uint64_t> out;
  for (const std::vector<std::byte>& one : bytes) out.push_back(checksum64(one));
  return out;
}

TEST(Loader, SamplesAreTheSameForAnyNumberOfRanksAndThreads) {
  DataOptions data;
  data.dataset = "noise";
  data.image = {64, 61, 3};  // a thread takes five samples at a time
  data.classes = 200;
  data.train_samples = 200;
  data.augment = {.pad = 4, .mirror = true};
  const auto set = open_dataset(data, Split::train);
  const auto expected = digests(set, data, 1, 1, 3, 0);
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_NE(expected, digests(set, data, 1, 1, 4, 0)) << "another epoch is in another order";
  for (const int ranks : {1, 2, 4})
    for (const int workers : {1, 2, 3, 5}) {
      EXPECT_EQ(digests(set, data, ranks, workers, 3, 0), expected) << ranks << " ranks, " << workers;
      EXPECT_EQ(digests(set, data, ranks, workers, 3, 2), std::vector(expected.begin() + 2, expected.end()));
    }
}

/// Files of two classes and several sizes, some with one channel.
class ImageFilesLoader : public TemporaryFolder {
 protected:
  ImageFilesLoader() {
    PhiloxSequence random(1, RandomUse::dataset, 0);
    std::vector<std::uint8_t> file;
    for (int i = 0; i < 40; ++i) {
      const std::int64_t height = 20 + i, width = 70 - i, channels = i % 5 == 0 ? 1 : 3;
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(height * width * channels));
      for (std::size_t p = 0; p < pixels.size(); ++p)
        pixels[p] = static_cast<std::uint8_t>(p / 7 + static_cast<std::size_t>(i) * 31 + random.below(40));
      encode_jpeg({height, width, channels, width * channels, pixels.data()}, 90, file);
      for (const char* split : {"train", "val"})
        write(fmt::format("{}/{}/{:02}.jpg", split, i % 2 ? "cat" : "dog", i),
              std::string(file.begin(), file.end()));
    }
  }
};

TEST_F(ImageFilesLoader, SamplesAreTheSameForAnyNumberOfRanksAndThreads) {
  DataOptions data;
  data.dataset = "images";
  data.root = folder_.string();
  data.augment = {.mirror = true,
                  .crop = {.kind = CropOptions::Kind::random_resized},
                  .jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                  .pca = 0.1};
  const auto set = open_dataset(data, Split::train);
  const std::vector<std::int64_t> input{24, 20, 3};
  const auto expected = digests(set, data, 1, 1, 3, 0, input);
  ASSERT_EQ(expected.size(), 3u);
  for (const int ranks : {1, 2, 4})
    for (const int workers : {1, 2, 3}) {
      EXPECT_EQ(digests(set, data, ranks, workers, 3, 0, input), expected) << ranks << " ranks, " << workers;
      EXPECT_EQ(digests(set, data, ranks, workers, 3, 1, input),
                std::vector(expected.begin() + 1, expected.end()));
    }
  // Each of the changes takes part.
  EXPECT_NE(digests(set, data, 1, 1, 4, 0, input), expected) << "another epoch";
  const auto without = [&](auto change) {
    DataOptions other = data;
    change(other.augment);
    return digests(set, other, 1, 1, 3, 0, input);
  };
  EXPECT_NE(without([](AugmentOptions& a) { a.crop = {}; }), expected);
  EXPECT_NE(without([](AugmentOptions& a) { a.jitter = {}; }), expected);
  EXPECT_NE(without([](AugmentOptions& a) { a.pca = 0; }), expected);
}

TEST(Loader, NeedsThreadsAndSlots) {
  EXPECT_THROW(slow({}, 0), Error);
  EXPECT_THROW(slow({}, 1, 0), Error);
  EXPECT_THROW(slow({}, 1)->next(), Error);
  EXPECT_THROW(slow({}, 1)->start(0, 6), Error);
}

/// The size of this process in memory, in bytes.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Loader, ThreadsThatCannotBeStartedAreOneError) {
  if (address_space() > rlim_t{1} << 40)
    GTEST_SKIP() << "no limit leaves room for a sanitizer's shadow memory";
  // In a process of its own, which has room for the stacks of some threads but not of all.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlim_t most = address_space() + (rlim_t{256} << 20);
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    int status = 1;
    try {
      slow({}, 1000);
    } catch (const Error& e) {
      const std::string text = e.what();
      const bool is_first = text.starts_with("data.workers: thread 1 of");
      if (text.starts_with("data.workers: thread ") && !is_first &&
          text.ends_with(" of 1000 cannot be started: Resource temporarily unavailable"))
        status = 0;
      else
        std::fprintf(stderr, "%s\n", e.what());
    }
    ::_exit(status);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace lpsgd
