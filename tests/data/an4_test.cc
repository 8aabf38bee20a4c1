#include "data/speech/an4.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "data/speech/features.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

namespace fs = std::filesystem;

/// A small corpus in AN4's layout. Speaker `held` is held out.
class SmallAn4 : public TemporaryFolder {
 protected:
  void SetUp() override {
    add("corpus/one/a-one-b", 7);
    add("corpus/held/b-held-b", 4);
    add("corpus/two/c-two-b", 5);
    add("corpus/one/d-one-b", 30);
    write_corpus();
    options_.dataset = "an4";
    options_.root = folder_.string();
    options_.speech = {.features = SpeechFeatures::filterbank,
                       .context = 1,
                       .alignment = "cntk/align.mlf",
                       .states = "cntk/states",
                       .held_out = {"held"}};
  }

  /// The frames of a recording change state in the middle.
  void add(const std::string& id, int frames) {
    const std::string name = fs::path(id).filename().string();
    list_ += id + "\n";
    transcripts_ += "<s> YES </s> (" + name + ")\n";
    labels_ += fmt::format("\"An4/1/{}.lab\"\n0 {}00000 sil\n{}00000 {}00000 a_2 -0.5\n.\n", name, frames / 2,
                           frames / 2, frames);
    samples_[id] = recording(static_cast<std::uint32_t>(samples_.size()), 160 * (frames + 2) + 33);
  }
  /// A tone of changing strength, with a little noise.
  static std::vector<std::int16_t> recording(std::uint32_t number, int samples) {
    PhiloxSequence random(9, RandomUse::dataset, number);
    std::vector<std::int16_t> out;
    for (int i = 0; i < samples; ++i)
      out.push_back(static_cast<std::int16_t>(
          3000 * std::sin(i * (0.2 + 0.1 * number)) * (1 + std::sin(0.004 * i)) + 100 * random.uniform()));
    return out;
  }
  void write_corpus() const {
    write("etc/an4_train.fileids", list_);
    write("etc/an4_train.transcription", transcripts_);
    write("cntk/states", "a_2\nsil\nz_4\n");
    write("cntk/align.mlf", "#!MLF!#\n" + labels_);
    for (const auto& [id, samples] : samples_) {
      std::string bytes;
      for (const std::int16_t x : samples) {
        const auto u = static_cast<std::uint16_t>(x);
        const char high = static_cast<char>(u >> 8), low = static_cast<char>(u & 255);
        bytes += big_ ? std::string{high, low} : std::string{low, high};
      }
      write("wav/" + id + ".raw", bytes);
    }
  }

  std::shared_ptr<const SequenceDataset> open(Split split) const {
    return std::dynamic_pointer_cast<const SequenceDataset>(open_an4(options_, split));
  }
  /// The message without the folder.
  std::string error(Split split = Split::train) const {
    try {
      open(split);
    } catch (const Error& e) {
      std::string text = e.what();
      for (std::size_t at; (at = text.find(folder_.string() + "/")) != std::string::npos;)
        text.erase(at, folder_.string().size() + 1);
      return text;
    }
    return "no error";
  }
  /// Raw features of a recording.
  std::vector<float> features(const std::string& id) const {
    const auto& samples = samples_.at(id);
    std::vector<float> out(static_cast<std::size_t>(33 * FeatureExtractor::frames(std::ssize(samples))));
    FeatureExtractor(SpeechFeatures::filterbank).extract(samples, out.data());
    return out;
  }

  std::string list_, transcripts_, labels_;
  std::map<std::string, std::vector<std::int16_t>> samples_;
  bool big_ = true;
  DataOptions options_;
};

TEST_F(SmallAn4, SplitsBySpeakerAndLabelsFrames) {
  const auto train = open(Split::train), test = open(Split::test);
  ASSERT_EQ(train->size(), 3);
  ASSERT_EQ(test->size(), 1);
  EXPECT_EQ(train->classes(), 3);
  EXPECT_EQ(train->features(), 99);
  EXPECT_EQ(train->frames(2), 30);
  EXPECT_THAT(test->name(0), testing::EndsWith("wav/corpus/held/b-held-b.raw"));
  std::vector<float> features(4 * 99);
  std::vector<std::int32_t> labels(4);
  test->read(0, 0, 4, features.data(), labels.data());
  EXPECT_THAT(labels, testing::ElementsAre(1, 1, 0, 0));
}

TEST_F(SmallAn4, NormalizesByTheTrainingRecordings) {
  std::vector<double> mean(33), deviation(33);
  double frames = 0;
  for (const char* id : {"corpus/one/a-one-b", "corpus/two/c-two-b", "corpus/one/d-one-b"}) {
    const std::vector<float> raw = features(id);
    for (std::size_t i = 0; i < raw.size(); ++i) mean[i % 33] += raw[i];
    frames += static_cast<double>(raw.size()) / 33;
  }
  for (double& m : mean) m /= frames;
  for (const char* id : {"corpus/one/a-one-b", "corpus/two/c-two-b", "corpus/one/d-one-b"}) {
    const std::vector<float> raw = features(id);
    for (std::size_t i = 0; i < raw.size(); ++i)
      deviation[i % 33] += std::pow(raw[i] - mean[i % 33], 2) / frames;
  }
  const auto test = open(Split::test);
  const std::vector<float> raw = features("corpus/held/b-held-b");
  std::vector<float> got(2 * 99);
  std::vector<std::int32_t> labels(2);
  // Frames 2 and 3 of 4, with one on either side; behind frame 3 stands frame 3 again.
  test->read(0, 2, 2, got.data(), labels.data());
  const int rows[] = {1, 2, 3, 2, 3, 3};
  for (int r = 0; r < 6; ++r)
    for (int j = 0; j < 33; ++j)
      ASSERT_NEAR(got[33 * r + j], (raw[33 * rows[r] + j] - mean[j]) / std::sqrt(deviation[j]), 2e-5);
  // Before a recording's frame 0 stands frame 0, and behind the last the last, not the neighbours' frames.
  const auto train = open(Split::train);
  train->read(1, 0, 1, got.data(), labels.data());
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 33, got.begin() + 33));
  train->read(1, 4, 1, got.data(), labels.data());
  EXPECT_TRUE(std::equal(got.begin() + 33, got.begin() + 66, got.begin() + 66));
}

TEST_F(SmallAn4, GivenMeansAndDeviationsReplaceItsOwn) {
  const DataOptions own = options_;
  const Normalization used = open(Split::train)->normalization();
  ASSERT_EQ(used.mean.size(), 33u);
  std::vector<float> a(4 * 99), b(4 * 99), c(4 * 99);
  std::vector<std::int32_t> labels(4);
  open(Split::test)->read(0, 0, 4, a.data(), labels.data());
  options_.mean = used.mean;
  options_.std = used.std;
  open(Split::test)->read(0, 0, 4, b.data(), labels.data());
  EXPECT_EQ(a, b);
  options_.mean.assign(33, 0);
  options_.std.assign(33, 1);
  open(Split::test)->read(0, 0, 4, c.data(), labels.data());
  EXPECT_EQ(c[33], features("corpus/held/b-held-b")[0]);
  options_.std.resize(32);
  EXPECT_EQ(error(), "data.std: 32 values, but the frames have 33 features");
  options_.std.assign(33, 0);
  EXPECT_EQ(error(), "data.std: 0 is not above 0");
  options_.mean[5] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error(), "data.mean: inf is not a finite number");
}

TEST_F(SmallAn4, ByteOrderIsDetectedOrGiven) {
  std::vector<float> big(4 * 99), little(4 * 99);
  std::vector<std::int32_t> labels(4);
  open(Split::test)->read(0, 0, 4, big.data(), labels.data());
  big_ = false;
  write_corpus();
  open(Split::test)->read(0, 0, 4, little.data(), labels.data());
  EXPECT_EQ(big, little);
  options_.speech.byte_order = ByteOrder::big;
  open(Split::test)->read(0, 0, 4, little.data(), labels.data());
  EXPECT_NE(big, little);
}

TEST_F(SmallAn4, ItsChecksumIsOfAllRecordingsOfTheSplit) {
  const std::uint64_t train = open(Split::train)->content_checksum(),
                      test = open(Split::test)->content_checksum();
  EXPECT_EQ(open(Split::train)->content_checksum(), train);
  const std::string held = open(Split::test)->name(0);  // a path
  for (auto& [id, samples] : samples_) {
    samples[7] ^= 1;
    write_corpus();
    const bool is_held = held.find(id) != std::string::npos;
    EXPECT_EQ(open(Split::train)->content_checksum() != train, !is_held) << id;
    EXPECT_EQ(open(Split::test)->content_checksum() != test, is_held) << id;
    samples[7] ^= 1;
  }
}

TEST_F(SmallAn4, HoldsOutRecordingsToo) {
  options_.speech.held_out = {"a-one-b", "two"};
  EXPECT_EQ(open(Split::test)->size(), 2);
  options_.speech.held_out = {"three"};
  EXPECT_EQ(error(),
            "data.speech.held_out: etc/an4_train.fileids names neither a recording nor a speaker 'three'");
  options_.speech.held_out = {"one", "two", "held"};
  EXPECT_EQ(error(), "data.speech.held_out: holds out 4 of 4 recordings; there must be some of both");
}

TEST_F(SmallAn4, UsesTheFirstOfItsRecordings) {
  options_.train_samples = 2;
  EXPECT_EQ(open(Split::train)->size(), 2);
  options_.test_samples = 2;
  EXPECT_EQ(error(Split::test), fmt::format("data.test_samples: 2 wanted, but {} holds 1", folder_.string()));
}

TEST_F(SmallAn4, RefusesFilesThatDoNotFitTogether) {
  write("wav/corpus/two/c-two-b.raw", std::string(2 * 160 * 9, 'x'));
  EXPECT_EQ(error(),
            "cntk/align.mlf:10: the alignment of 'c-two-b' has 5 frames, wav/corpus/two/c-two-b.raw has 7");
  write("wav/corpus/two/c-two-b.raw", "odd");
  EXPECT_EQ(error(),
            "wav/corpus/two/c-two-b.raw: truncated: 3 bytes, which is no whole number of 16 bit samples");
  write("wav/corpus/two/c-two-b.raw", std::string(958, 'x'));
  EXPECT_EQ(
      error(),
      "wav/corpus/two/c-two-b.raw: 479 samples, fewer than the 480 of the shortest recording with a frame");
  fs::remove(folder_ / "wav/corpus/two/c-two-b.raw");
  EXPECT_EQ(error(Split::test),
            "wav/corpus/two/c-two-b.raw: cannot be read: No such file or directory (etc/an4_train.fileids:3 "
            "names it)");
  fs::create_directory(folder_ / "wav/corpus/two/c-two-b.raw");
  EXPECT_THAT(error(), testing::StartsWith("wav/corpus/two/c-two-b.raw: cannot be read: "));
}

TEST_F(SmallAn4, NamesEveryBadFile) {
  write("wav/corpus/two/c-two-b.raw", "odd");
  fs::remove(folder_ / "wav/corpus/one/a-one-b.raw");
  write("wav/corpus/held/b-held-b.raw", std::string(2 * 160 * 9, 'x'));
  write("etc/an4_train.transcription", "none\n(e-one-b)\n");
  for (const Split split : {Split::train, Split::test})
    EXPECT_EQ(error(split),
              "wav/corpus/one/a-one-b.raw: cannot be read: No such file or directory "
              "(etc/an4_train.fileids:1 names it)\n"
              "cntk/align.mlf:6: the alignment of 'b-held-b' has 4 frames, wav/corpus/held/b-held-b.raw has "
              "7\n"
              "wav/corpus/two/c-two-b.raw: truncated: 3 bytes, which is no whole number of 16 bit samples\n"
              "etc/an4_train.transcription:1: the transcript does not end with its recording's name in "
              "parentheses\n"
              "etc/an4_train.transcription:2: a transcript of 'e-one-b', which has no audio: "
              "etc/an4_train.fileids does not name it");
  // Without alignments the recordings are looked at all the same.
  fs::remove(folder_ / "cntk/states");
  fs::remove(folder_ / "cntk/align.mlf");
  EXPECT_THAT(error(), testing::ContainsRegex("cntk/states: [^\n]*\ncntk/align.mlf: [^\n]*\n"
                                              "wav/corpus/one/a-one-b.raw: [^\n]*\n"
                                              "wav/corpus/two/c-two-b.raw: [^\n]*\netc/"));
}

TEST_F(SmallAn4, RefusesRecordingsThatChange) {
  // A file of the system's that says that it is longer than what is read from it.
  const fs::path other = "/sys/devices/system/cpu/online";
  std::error_code error_code;
  if (fs::file_size(other, error_code) != 4096 || read_file(other.string()).size() % 2 != 0)
    GTEST_SKIP() << other << " is not as expected";
  options_.speech.byte_order = ByteOrder::big;
  for (const char* name : {"corpus/one/x-one-b", "corpus/two/y-two-b"}) {
    add(name, 10);  // as many as 4096 bytes have
    write_corpus();
    samples_.erase(name);
    fs::remove(folder_ / fmt::format("wav/{}.raw", name));
    fs::create_symlink(other, folder_ / fmt::format("wav/{}.raw", name));
  }
  EXPECT_EQ(error(),
            "wav/corpus/one/x-one-b.raw: changed while it was read\n"
            "wav/corpus/two/y-two-b.raw: changed while it was read");
}

TEST_F(SmallAn4, RefusesListsThatDoNotFitTogether) {
  const std::string labels = labels_;
  labels_ += "\"x/e-one-b.lab\"\n0 100000 sil\n.\n";
  write_corpus();
  EXPECT_EQ(error(),
            "cntk/align.mlf:18: an alignment of 'e-one-b', which etc/an4_train.fileids does not name");
  labels_ = labels.substr(0, labels.find("\"An4/1/d-one-b"));
  write_corpus();
  EXPECT_EQ(error(), "etc/an4_train.fileids:4: 'd-one-b' has no alignment in cntk/align.mlf");
  labels_ = labels;
  transcripts_ += "<s> NO </s> (e-one-b)\n";
  write_corpus();
  EXPECT_EQ(error(),
            "etc/an4_train.transcription:5: a transcript of 'e-one-b', which has no audio: "
            "etc/an4_train.fileids does "
            "not name it");
  transcripts_ = "<s> NO </s> )e-one-b(\n";
  write_corpus();
  EXPECT_EQ(
      error(),
      "etc/an4_train.transcription:1: the transcript does not end with its recording's name in parentheses");
  transcripts_.clear();
  list_ += "corpus/two/a-one-b\n";
  write_corpus();
  EXPECT_EQ(error(), "etc/an4_train.fileids:5: 'a-one-b' a second time");
  write("etc/an4_train.fileids", "corpus/two/\n" + list_);
  EXPECT_EQ(error(),
            "etc/an4_train.fileids:1: expected a recording's path without suffix\n"
            "etc/an4_train.fileids:6: 'a-one-b' a second time");
  write("etc/an4_train.fileids", "\n");
  EXPECT_EQ(error(), "etc/an4_train.fileids: names no recording");
  options_.root.clear();
  EXPECT_EQ(error(), "data.root: missing: the folder of AN4, with etc/, wav/ and the alignments");
}

TEST(An4, TheRealOneHasAsManyFramesAsItsAlignments) {
  const char* data = std::getenv("LPSGD_DATA");
  if (!data || !fs::exists(fs::path(data) / "an4/etc")) GTEST_SKIP() << "LPSGD_DATA does not hold an4";
  DataOptions options;
  options.root = (fs::path(data) / "an4").string();
  const auto test = std::dynamic_pointer_cast<const SequenceDataset>(open_an4(options, Split::test));
  EXPECT_EQ(test->size(), 48);
  EXPECT_EQ(test->classes(), 132);
  EXPECT_EQ(test->features(), 363);
  options.mean = test->normalization().mean;
  options.std = test->normalization().std;
  const auto train = std::dynamic_pointer_cast<const SequenceDataset>(open_an4(options, Split::train));
  ASSERT_EQ(train->size(), 900);
  std::int64_t frames = 0;
  double sum = 0, squares = 0;
  std::vector<float> features;
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < 900; ++i) {
    features.resize(static_cast<std::size_t>(363 * train->frames(i)));
    labels.resize(static_cast<std::size_t>(train->frames(i)));
    train->read(i, 0, train->frames(i), features.data(), labels.data());
    frames += train->frames(i);
    for (std::size_t at = 165; at < features.size(); at += 363) {  // the frame's own first feature
      sum += features[at];
      squares += static_cast<double>(features[at]) * features[at];
    }
  }
  for (std::int64_t i = 0; i < 48; ++i) frames += test->frames(i);
  EXPECT_EQ(frames, 252734);
  const auto n = static_cast<double>(frames) * 900 / 948;
  EXPECT_NEAR(sum / n, 0, 1e-4);
  EXPECT_NEAR(squares / n, 1, 0.05);
}

}  // namespace
}  // namespace lpsgd
