// Packed images against slow references: means of pixels, and a whole decode of what was encoded.
#include "data/image_packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "data/image_reader.h"
#include "data/jpeg.h"
#include "data/jpeg_encoder.h"
#include "data/libjpeg.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/jpeg_maker.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

Bytes smooth(const ImageShape& shape) {
  Bytes out;
  for (std::int64_t y = 0; y < shape.height; ++y)
    for (std::int64_t x = 0; x < shape.width; ++x)
      for (std::int64_t c = 0; c < shape.channels; ++c)
        out.push_back(
            static_cast<std::uint8_t>(128 + 50 * std::sin(0.07 * static_cast<double>(y + c)) +
                                      40 * std::cos(0.05 * static_cast<double>(x) - static_cast<double>(c))));
  return out;
}

double mean_difference(const Bytes& a, std::span<const std::uint8_t> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(int{a[i]} - int{b[i]});
  return sum / static_cast<double>(a.size());
}

StoredImage pack(const PackOptions& options, const StoredImage& image, Bytes& out) {
  return ImagePacker(options).pack(image, "a.jpg", out);
}

TEST(ImagePacker, ShrinksPixelsToTheMeanOfThoseThatFallIntoOne) {
  const ImageShape shape{24, 36, 3};
  const Bytes pixels = smooth(shape);
  Bytes out;
  const StoredImage packed = pack({.short_side = 8}, {pixels, shape}, out);
  ASSERT_EQ(packed.shape, (ImageShape{8, 12, 3}));
  for (std::int64_t y = 0; y < 8; ++y)
    for (std::int64_t x = 0; x < 12; ++x)
      for (std::int64_t c = 0; c < 3; ++c) {
        double sum = 0;
        for (std::int64_t dy = 0; dy < 3; ++dy)
          for (std::int64_t dx = 0; dx < 3; ++dx)
            sum += pixels[static_cast<std::size_t>(((3 * y + dy) * 36 + 3 * x + dx) * 3 + c)];
        ASSERT_NEAR(packed.bytes[static_cast<std::size_t>((y * 12 + x) * 3 + c)], sum / 9, 0.51);
      }
}

TEST(ImagePacker, TheShorterSideIsAsAskedAndTheOtherKeepsTheAspect) {
  struct Case {
    std::int64_t height, width, side, packed_height, packed_width;
  };
  for (const Case& c : {Case{50, 33, 20, 30, 20},
                        {33, 50, 20, 20, 30},
                        {20, 99, 20, 20, 99},
                        {19, 99, 20, 19, 99},
                        {40, 40, 1, 1, 1},
                        {1, 500, 20, 1, 500},
                        {101, 40, 20, 51, 20}}) {
    const ImageShape shape{c.height, c.width, 1};
    const Bytes pixels = smooth(shape);
    Bytes out;
    EXPECT_EQ(pack({.short_side = c.side}, {pixels, shape}, out).shape,
              (ImageShape{c.packed_height, c.packed_width, 1}));
  }
}

TEST(ImagePacker, LeavesAloneWhatNeedsNoChange) {
  const Bytes file = make_jpeg({.width = 64, .height = 48});
  const Bytes pixels = smooth({10, 10, 3});
  Bytes out;
  for (const PackOptions& options :
       {PackOptions{}, PackOptions{.short_side = 48}, PackOptions{.short_side = 100}}) {
    EXPECT_EQ(pack(options, {file, std::nullopt}, out).bytes.data(), file.data());
    EXPECT_EQ(pack(options, {pixels, ImageShape{10, 10, 3}}, out).bytes.data(), pixels.data());
  }
}

TEST(ImagePacker, DecodesUprightAndWhole) {
  const JpegKind kind{.width = 64, .height = 48, .orientation = 6};  // to be turned by 90 degrees
  const Bytes file = make_jpeg(kind);
  const WholeImage whole = decode_whole(file, JCS_RGB);
  Bytes out;
  const StoredImage packed = pack({.decoded = true}, {file, std::nullopt}, out);
  ASSERT_EQ(packed.shape, (ImageShape{64, 48, 3}));
  for (int y = 0; y < 64; ++y)
    for (int x = 0; x < 48; ++x)
      for (int c = 0; c < 3; ++c)
        ASSERT_EQ(packed.bytes[static_cast<std::size_t>((y * 48 + x) * 3 + c)],
                  whole.pixels[static_cast<std::size_t>(((47 - x) * 64 + y) * 3 + c)]);
  EXPECT_EQ(pack({.short_side = 24, .decoded = true}, {file, std::nullopt}, out).shape,
            (ImageShape{32, 24, 3}));
}

TEST(ImagePacker, EncodesShrunkImagesNearTheirPixels) {
  const ImageShape shape{96, 128, 3};
  const Bytes pixels = smooth(shape);
  Bytes file;
  encode_jpeg({96, 128, 3, 3 * 128, pixels.data()}, 98, file);
  Bytes first, second;
  const StoredImage small = pack({.short_side = 48, .decoded = true}, {file, std::nullopt}, first);
  const StoredImage packed = pack({.short_side = 48, .quality = 95}, {file, std::nullopt}, second);
  ASSERT_EQ(packed.shape, std::nullopt);
  const WholeImage decoded = decode_whole({packed.bytes.begin(), packed.bytes.end()}, JCS_RGB);
  ASSERT_EQ(decoded.width, 64);
  ASSERT_EQ(decoded.height, 48);
  EXPECT_LT(mean_difference(decoded.pixels, small.bytes), 1.5);
}

TEST(ImagePacker, GrayscaleKeepsItsOneChannel) {
  const Bytes file = make_jpeg({.colour = JpegKind::Colour::grey, .orientation = 6});
  const WholeImage whole = decode_whole(file, JCS_GRAYSCALE);
  Bytes out, small;
  const StoredImage packed = pack({.decoded = true}, {file, std::nullopt}, out);
  ASSERT_EQ(packed.shape, (ImageShape{64, 48, 1}));
  for (int y = 0; y < 64; ++y)
    for (int x = 0; x < 48; ++x)
      ASSERT_EQ(packed.bytes[static_cast<std::size_t>(y * 48 + x)],
                whole.pixels[static_cast<std::size_t>((47 - x) * 64 + y)]);
  const StoredImage encoded = pack({.short_side = 40}, {file, std::nullopt}, small);
  JpegDecoder decoder(3);
  decoder.open(encoded.bytes, "encoded");
  EXPECT_EQ(decoder.components(), 1);
}

/// The samples of an image in colour networks, augmented and not.
std::vector<Bytes> samples_of(const StoredImage& image) {
  const ImageShape out{30, 28, 3};
  std::vector<Bytes> samples;
  for (const Interpolation interpolation : {Interpolation::linear, Interpolation::area}) {
    ImageTransform transform{.evaluate = {.side_ratio = 0.875}, .interpolation = interpolation};
    transform.augment = {.mirror = true,
                         .crop = {.kind = CropOptions::Kind::random_resized},
                         .jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                         .pca = 0.1};
    ImageReader reader(transform, out);
    for (std::uint32_t i = 0; i < 20; ++i) {
      PhiloxSequence random(5, RandomUse::augmentation, i, 2);
      samples.emplace_back(static_cast<std::size_t>(out.bytes()));
      reader.read(image, "a", i == 0 ? nullptr : &random, samples.back().data());
    }
  }
  return samples;
}

TEST(ImagePacker, PackedGrayscaleGivesTheSamplesOfItsColours) {
  const Bytes file = make_jpeg({.width = 70, .height = 52, .colour = JpegKind::Colour::grey});
  const WholeImage whole = decode_whole(file, JCS_RGB);
  const StoredImage colours{whole.pixels, ImageShape{52, 70, 3}};
  Bytes out, shrunk, encoded;
  EXPECT_EQ(samples_of(pack({.decoded = true}, {file, std::nullopt}, out)), samples_of(colours));
  const PackOptions options{.short_side = 40, .quality = 90};
  const StoredImage small = pack(options, colours, shrunk);
  const ImageShape& shape = small.shape.value();
  encode_jpeg({shape.height, shape.width, 3, 3 * shape.width, shrunk.data()}, 90, encoded);
  EXPECT_EQ(samples_of(pack(options, {file, std::nullopt}, out)), samples_of({encoded, std::nullopt}));
}

TEST(ImagePacker, NamesADamagedFile) {
  Bytes file = make_jpeg({});
  file.resize(file.size() / 2);
  Bytes out;
  // Also where the file would stay as it is.
  for (const PackOptions& options :
       {PackOptions{.decoded = true}, PackOptions{}, PackOptions{.short_side = 99}})
    EXPECT_THAT(error_of([&] { pack(options, {file, std::nullopt}, out); }), HasSubstr("a.jpg: "));
  EXPECT_THAT(error_of([&] {
                pack({.short_side = 10}, {Bytes{1, 2, 3}, std::nullopt}, out);
              }),
              HasSubstr("a.jpg: "));
}

TEST(ImagePacker, RefusesWhatDoesNotFit) {
  Bytes out;
  const Bytes pixels(8);
  EXPECT_EQ(error_of([&] {
              pack({}, {pixels, ImageShape{2, 2, 3}}, out);
            }),
            "a.jpg: 8 bytes are not 2 x 2 x 3 pixels");
  // A PGM file whose shrunk image is wider than JPEG can be.
  const std::string header = "P5\n200000 30\n255\n";
  Bytes wide(header.begin(), header.end());
  wide.resize(wide.size() + 200000 * 30);
  EXPECT_THAT(error_of([&] {
                pack({.short_side = 20}, {wide, std::nullopt}, out);
              }),
              HasSubstr("a.jpg: a JPEG image cannot be encoded: Maximum supported image dimension is 65500"));
}

TEST(JpegEncoder, WritesColoursAndLuminance) {
  for (const std::int64_t channels : {1, 3}) {
    for (const ImageShape& shape :
         {ImageShape{37, 53, channels}, ImageShape{1, 1, channels}, ImageShape{200, 3, channels}}) {
      const Bytes pixels = smooth(shape);
      Bytes file, small;
      encode_jpeg({shape.height, shape.width, channels, shape.width * channels, pixels.data()}, 97, file);
      const WholeImage decoded = decode_whole(file, channels == 1 ? JCS_GRAYSCALE : JCS_RGB);
      EXPECT_EQ(decoded.width, shape.width);
      EXPECT_EQ(decoded.height, shape.height);
      EXPECT_LT(mean_difference(decoded.pixels, pixels), 2);
      encode_jpeg({shape.height, shape.width, channels, shape.width * channels, pixels.data()}, 30, small);
      if (shape.height > 1) {
        EXPECT_LT(small.size(), file.size());
      }
    }
  }
}

}  // namespace
}  // namespace lpsgd
