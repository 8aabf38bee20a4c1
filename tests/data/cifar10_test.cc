// CIFAR-10 from small files in the original format: pixels, order, and the texts of errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int files = 6;

std::uint8_t pixel_of(int file, int record, int channel, int y, int x) {
  return static_cast<std::uint8_t>(file * 91 + record * 57 + channel * 101 + y * 7 + x * 3);
}

class Cifar10 : public TemporaryFolder {
 protected:
  Cifar10() {
    for (int f = 0; f < files; ++f) write(f, 3 + f);
    options_.dataset = "cifar10";
    options_.root = folder_.string();
  }

  std::string path(int file) const {
    return (folder_ / (file < 5 ? "data_batch_" + std::to_string(file + 1) + ".bin" : "test_batch.bin"))
        .string();
  }
  void write(int file, int records) const {
    std::ofstream out(path(file), std::ios::binary);
    for (int r = 0; r < records; ++r) {
      out.put(static_cast<char>((file + r) % 10));
      for (int c = 0; c < 3; ++c)
        for (int y = 0; y < 32; ++y)
          for (int x = 0; x < 32; ++x) out.put(static_cast<char>(pixel_of(file, r, c, y, x)));
    }
  }
  template <class E = FileError>
  std::string error_of(Split split = Split::train) const {
    return lpsgd::error_of<E>([&] { open_dataset(options_, split); });
  }

  DataOptions options_;
};

TEST_F(Cifar10, HoldsEveryRecordInOrderAsInterleavedPixels) {
  for (const Split split : {Split::train, Split::test}) {
    const auto set = open_images(options_, split);
    EXPECT_EQ(set->classes(), 10);
    EXPECT_EQ(set->fixed_shape(), (ImageShape{32, 32, 3}));
    std::int64_t i = 0;
    for (int f = split == Split::train ? 0 : 5; f < (split == Split::train ? 5 : 6); ++f) {
      for (int r = 0; r < 3 + f; ++r, ++i) {
        ASSERT_LT(i, set->size());
        EXPECT_EQ(set->label(i), (f + r) % 10);
        const auto image = pixels_of(*set, i);
        EXPECT_EQ(set->name(i), fmt::format("record {} of {}", r, path(f)));
        ASSERT_EQ(image.size(), 3072u);
        int wrong = 0;
        for (int y = 0; y < 32; ++y)
          for (int x = 0; x < 32; ++x)
            for (int c = 0; c < 3; ++c)
              wrong += image[static_cast<std::size_t>((y * 32 + x) * 3 + c)] != pixel_of(f, r, c, y, x);
        EXPECT_EQ(wrong, 0) << "sample " << i;
      }
    }
    EXPECT_EQ(i, set->size());
  }
}

TEST_F(Cifar10, UsesOnlyTheFirstSamplesAsked) {
  options_.train_samples = 5;
  options_.test_samples = 8;
  EXPECT_EQ(open_dataset(options_, Split::train)->size(), 5);
  EXPECT_EQ(open_images(options_, Split::train)->label(4), 2);  // second record of the second file
  EXPECT_EQ(open_dataset(options_, Split::test)->size(), 8);
  options_.test_samples = 9;
  EXPECT_THAT(error_of<ConfigError>(Split::test), StartsWith("data.test_samples: 9 wanted, but "));
}

TEST_F(Cifar10, NamesAMissingFileWhicheverSplitIsOpened) {
  std::filesystem::remove(path(5));
  for (const Split split : {Split::train, Split::test}) {
    EXPECT_THAT(error_of(split), StartsWith(path(5) + ": cannot be read: No such file or directory"));
    EXPECT_THAT(error_of(split), HasSubstr("data.root"));
  }
  options_.root += "/elsewhere";
  EXPECT_THAT(error_of(), StartsWith(options_.root + "/data_batch_1.bin: cannot be read: "));
  options_.root.clear();
  EXPECT_THAT(error_of<ConfigError>(), StartsWith("data.root: missing"));
}

TEST_F(Cifar10, NamesATruncatedFile) {
  for (const std::uintmax_t bytes : {0, 1, 3072, 3074, 3073 * 5 - 1}) {
    std::filesystem::resize_file(path(2), bytes);
    EXPECT_EQ(error_of(), path(2) + ": truncated or no CIFAR-10 file: " + std::to_string(bytes) +
                              " bytes, not a whole number of records of 3073 (expected 30730000)");
  }
}

// Sparse files: their records are black images of class 0.
TEST_F(Cifar10, NamesAFileOfTheOriginalSetThatWasCutBetweenRecords) {
  for (int f = 0; f < files; ++f) std::filesystem::resize_file(path(f), 3073 * 10000);
  options_.train_samples = options_.test_samples = 1;
  EXPECT_EQ(open_dataset(options_, Split::train)->size(), 1);
  std::filesystem::resize_file(path(2), 3073 * 9999);
  const std::string message = path(2) +
                              ": truncated: 30726927 bytes, expected 30730000 (10000 records), as " +
                              path(0) + " is a file of CIFAR-10";
  EXPECT_EQ(error_of(Split::train), message);
  EXPECT_EQ(error_of(Split::test), message);
}

TEST_F(Cifar10, RefusesAFileLargerThanTheOriginal) {
  std::filesystem::resize_file(path(1), std::uintmax_t{3073} * 3'000'000);
  EXPECT_EQ(error_of(), path(1) + ": too large: 9219000000 bytes, expected 30730000");
}

TEST_F(Cifar10, NamesARecordWithAWrongLabel) {
  std::fstream file(path(3), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(3073 * 4);
  file.put(10);
  file.close();
  EXPECT_EQ(error_of(), path(3) + ": record 4 (from 0) has label 10, expected 0 to 9");
}

TEST_F(Cifar10, NamesEveryBadFile) {
  std::filesystem::resize_file(path(1), 5);
  std::filesystem::remove(path(5));
  EXPECT_THAT(error_of(),
              testing::ContainsRegex("data_batch_2.bin: truncated [^\n]*\n[^\n]*test_batch.bin: cannot"));
  write(1, 4);
  write(5, 8);
  for (const int f : {0, 3}) {
    std::fstream file(path(f), std::ios::in | std::ios::out | std::ios::binary);
    file.put(99);
  }
  EXPECT_EQ(error_of(), path(0) + ": record 0 (from 0) has label 99, expected 0 to 9\n" + path(3) +
                            ": record 0 (from 0) has label 99, expected 0 to 9");
}

TEST_F(Cifar10, RefusesAFolderInPlaceOfAFile) {
  std::filesystem::remove(path(0));
  std::filesystem::create_directory(path(0));
  EXPECT_THAT(error_of(), StartsWith(path(0) + ": cannot be read: "));
}

}  // namespace
}  // namespace lpsgd
