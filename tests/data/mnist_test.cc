// MNIST from small files in the original format, plain and gzip.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "tests/core/temporary_folder.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::uint8_t pixel_of(std::int64_t image, std::int64_t at) {
  return static_cast<std::uint8_t>(image * 31 + at * 7 + at / 28);
}

std::string images(std::uint32_t count, std::uint32_t height = 28, std::uint32_t width = 28) {
  std::string out = big_endian(0x803) + big_endian(count) + big_endian(height) + big_endian(width);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t p = 0; p < height * width; ++p) out.push_back(static_cast<char>(pixel_of(i, p)));
  return out;
}

std::string labels(std::uint32_t count) {
  std::string out = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) out.push_back(static_cast<char>((i + 3) % 10));
  return out;
}

class Mnist : public TemporaryFolder {
 protected:
  Mnist() {
    options_.dataset = "mnist";
    options_.root = folder_.string();
    for (const char* split : {"train", "t10k"}) {
      const std::uint32_t count = split == std::string("train") ? 12 : 5;
      write(split + std::string("-images-idx3-ubyte"), images(count));
      write(split + std::string("-labels-idx1-ubyte"), labels(count));
    }
  }
  std::shared_ptr<const ImageDataset> open(Split split = Split::train) const {
    return open_images(options_, split);
  }
  /// The error that a content of the training images' file causes.
  std::string error_with(const std::string& content, const char* name = "train-images-idx3-ubyte") const {
    write(name, content);
    const std::string message = error_of([&] { open(); });
    return message.starts_with(path(name) + ": ") ? message.substr(path(name).size() + 2)
                                                  : "other: " + message;
  }
  std::string gzip(const std::string& content) const {
    const std::string name = path("gzip.tmp");
    gzFile out = ::gzopen(name.c_str(), "wb");
    ::gzwrite(out, content.data(), static_cast<unsigned>(content.size()));
    ::gzclose(out);
    std::ifstream in(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  DataOptions options_;
};

TEST_F(Mnist, HasEveryPixelAndLabel) {
  for (const bool compressed : {false, true}) {
    if (compressed) {  // one by its suffix, one by its content alone
      write("train-images-idx3-ubyte.gz", gzip(images(12)));
      std::filesystem::remove(path("train-images-idx3-ubyte"));
      write("train-labels-idx1-ubyte", gzip(labels(12)));
    }
    const auto set = open();
    EXPECT_EQ(set->size(), 12);
    EXPECT_EQ(set->classes(), 10);
    EXPECT_EQ(set->fixed_shape(), (ImageShape{28, 28, 1}));
    EXPECT_THAT(set->name(3),
                EndsWith(compressed ? "train-images-idx3-ubyte.gz" : "train-images-idx3-ubyte"));
    std::vector<std::uint8_t> unused;
    for (std::int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(set->label(i), (i + 3) % 10);
      const StoredImage image = set->image(i, unused);
      ASSERT_EQ(image.bytes.size(), 784u);
      for (std::int64_t p = 0; p < 784; ++p)
        ASSERT_EQ(image.bytes[static_cast<std::size_t>(p)], pixel_of(i, p));
    }
    EXPECT_EQ(open(Split::test)->size(), 5);
  }
  options_.train_samples = 7;
  EXPECT_EQ(open()->size(), 7);
  options_.train_samples = 13;
  EXPECT_EQ(error_of<ConfigError>([&] { open(); }),
            "data.train_samples: 13 wanted, but " + folder_.string() + " holds 12");
}

TEST_F(Mnist, RefusesDamagedFiles) {
  const std::string good = images(12);
  EXPECT_EQ(error_with(""), "empty, expected an IDX file");
  EXPECT_EQ(error_with("no"), "truncated IDX file: 2 bytes, the header has 16");
  EXPECT_EQ(error_with(good.substr(0, 15)), "truncated IDX file: 15 bytes, the header has 16");
  EXPECT_EQ(error_with("GIF89a, which is no IDX"),
            "no IDX file of images: magic number 47494638, expected 00000803");
  EXPECT_EQ(error_with(labels(12)), "no IDX file of images: magic number 00000801, expected 00000803");
  std::string floats = good;
  floats[2] = 0x0d;
  EXPECT_EQ(error_with(floats), "no IDX file of images: magic number 00000d03, expected 00000803");
  EXPECT_EQ(error_with(images(3, 20, 28)), "images of 20 x 28, expected 28 x 28");
  EXPECT_EQ(error_with(images(0)), "0 images, expected 1 to 1000000");
  EXPECT_EQ(error_with(good.substr(0, 9000)),
            "truncated IDX file: 9000 bytes cannot hold the 9408 bytes of images that its header says");
  EXPECT_EQ(error_with(gzip(good.substr(0, 9000))),
            "truncated IDX file: 8984 bytes of images, its header says 9408");
  EXPECT_EQ(error_with(good + "x"), "holds more than the 9408 bytes of images that its header says");
  std::string huge = good;
  huge.replace(4, 4, big_endian(900'000));
  for (const std::string& content : {huge, gzip(huge)})
    EXPECT_THAT(error_with(content),
                HasSubstr("bytes cannot hold the 705600000 bytes of images that its header says"));
  const std::string packed = gzip(good);
  EXPECT_EQ(error_with(packed.substr(0, packed.size() / 2)), "truncated gzip file");
  EXPECT_EQ(error_with(packed.substr(0, packed.size() - 6)), "truncated gzip file");
  std::string damaged = packed;
  damaged[damaged.size() - 7] ^= 1;  // in the checksum
  EXPECT_THAT(error_with(damaged), HasSubstr("damaged gzip file"));
}

TEST_F(Mnist, RefusesWrongLabelsAndMissingFiles) {
  const char* name = "train-labels-idx1-ubyte";
  std::string wrong = labels(12);
  wrong[8 + 4] = 10;
  EXPECT_EQ(error_with(wrong, name), "label 4 (from 0) is 10, expected 0 to 9");
  EXPECT_EQ(error_with(labels(11), name),
            "11 labels, but " + path("train-images-idx3-ubyte") + " has 12 images");
  std::filesystem::remove(path(name));
  std::filesystem::create_directory(path(name));
  EXPECT_EQ(error_of([&] { open(); }), path(name) + ": cannot be read: Is a directory");
  std::filesystem::remove(path("t10k-labels-idx1-ubyte"));  // of the other split
  EXPECT_THAT(
      error_of([&] { open(); }),
      HasSubstr("t10k-labels-idx1-ubyte: missing, and so is t10k-labels-idx1-ubyte.gz (data.root must hold"));
  expect_without_permission(
      [&] {
        const std::string errors = error_of([&] { open(); });
        return errors.substr(0, errors.find('\n'));  // of four files
      },
      path("train-images-idx3-ubyte") + ": cannot be read: Permission denied");
  options_.root = write("file", "");
  EXPECT_THAT(error_of([&] { open(); }),
              HasSubstr(path("file/train-images-idx3-ubyte") + ": cannot be read: Not a directory\n"));
  options_.root.clear();
  EXPECT_THAT(error_of<ConfigError>([&] { open(); }), HasSubstr("data.root: missing: the folder of"));
}

}  // namespace
}  // namespace lpsgd
