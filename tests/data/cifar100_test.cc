// CIFAR-100 from small files in the original format; what it shares with CIFAR-10 is in cifar10_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

std::string records(int count, int first) {
  std::string out;
  for (int r = 0; r < count; ++r) {
    out.push_back(static_cast<char>((first + r) % 20));        // the coarse label
    out.push_back(static_cast<char>((first + r * 37) % 100));  // the fine one
    for (int p = 0; p < 3072; ++p) out.push_back(static_cast<char>(first + r * 13 + p * 5 + p / 1024));
  }
  return out;
}

class Cifar100 : public TemporaryFolder {
 protected:
  Cifar100() {
    options_.dataset = "cifar100";
    options_.root = folder_.string();
    write("train.bin", records(6, 0));
    write("test.bin", records(3, 90));
  }
  std::string error() const {
    return error_of([&] { open_images(options_, Split::train); });
  }
  DataOptions options_;
};

TEST_F(Cifar100, HasFineLabelsAndInterleavedPixels) {
  for (const Split split : {Split::train, Split::test}) {
    const int first = split == Split::train ? 0 : 90;
    const auto set = open_images(options_, split);
    ASSERT_EQ(set->size(), split == Split::train ? 6 : 3);
    EXPECT_EQ(set->classes(), 100);
    EXPECT_EQ(set->fixed_shape(), (ImageShape{32, 32, 3}));
    for (int r = 0; r < set->size(); ++r) {
      EXPECT_EQ(set->label(r), (first + r * 37) % 100);
      const auto image = pixels_of(*set, r);
      for (int p = 0; p < 1024; ++p)
        for (int c = 0; c < 3; ++c)
          ASSERT_EQ(image[static_cast<std::size_t>(3 * p + c)],
                    static_cast<std::uint8_t>(first + r * 13 + (c * 1024 + p) * 5 + c));
    }
  }
  EXPECT_EQ(open_images(options_, Split::test)->name(2), "record 2 of " + path("test.bin"));
}

TEST_F(Cifar100, RefusesDamagedFiles) {
  write("test.bin", records(3, 90).substr(1));
  EXPECT_EQ(error(), path("test.bin") +
                         ": truncated or no CIFAR-100 file: 9221 bytes, not a whole number of records of "
                         "3074 (expected 30740000)");
  write("test.bin", "");
  EXPECT_THAT(error(), HasSubstr("truncated or no CIFAR-100 file: 0 bytes"));
  write("test.bin", records(3, 90));
  std::string text = records(6, 0);
  text[3074 * 2 + 1] = 100;
  write("train.bin", text);
  EXPECT_EQ(error(), path("train.bin") + ": record 2 (from 0) has label 100, expected 0 to 99");
  text[3074] = 20;
  write("train.bin", text);
  EXPECT_EQ(error(), path("train.bin") + ": record 1 (from 0) has label 20, expected 0 to 19");
  std::filesystem::remove(path("train.bin"));
  EXPECT_THAT(
      error(),
      HasSubstr("train.bin: cannot be read: No such file or directory (data.root must hold CIFAR-100's "
                "original binary files train.bin and test.bin)"));
}

}  // namespace
}  // namespace lpsgd
