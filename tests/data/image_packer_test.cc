// ImagePacker: sizes, pixels, and what its JPEG files look like once they are decoded.
#include "data/image_packer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "data/image_decoder.h"
#include "data/libjpeg.h"
#include "tests/data/jpeg_maker.h"

namespace lpsgd {
namespace {

TEST(ImagePacker, KeepsPixelsThatAreNotResized) {
  const Bytes jpeg = make_jpeg({.width = 61, .height = 40});
  Bytes out;
  const StoredImage packed = ImagePacker({.decoded = true}).pack({jpeg, {}}, "a", out);
  EXPECT_EQ(packed.shape, (ImageShape{40, 61, 3}));
  EXPECT_EQ(out, decode_whole(jpeg, JCS_RGB).pixels);
  EXPECT_EQ(packed.bytes.data(), out.data());
}

TEST(ImagePacker, ResizesTheShorterSide) {
  ImagePacker packer({.short_side = 20, .decoded = true});
  Bytes out;
  const auto shape = [&](int width, int height, int orientation = 1) {
    const Bytes jpeg = make_jpeg({.width = width, .height = height, .orientation = orientation});
    const ImageShape got = packer.pack({jpeg, {}}, "a", out).shape.value();
    EXPECT_EQ(out.size(), static_cast<std::size_t>(got.bytes()));
    return got;
  };
  EXPECT_EQ(shape(60, 40), (ImageShape{20, 30, 3}));
  EXPECT_EQ(shape(40, 61), (ImageShape{31, 20, 3}));
  EXPECT_EQ(shape(40, 61, 6), (ImageShape{20, 31, 3}));
  EXPECT_EQ(shape(200, 19), (ImageShape{19, 200, 3}));  // never larger
}

TEST(ImagePacker, TakesTheMeanOverAreas) {
  Bytes pixels;  // 6 x 4, one channel
  for (int i = 0; i < 24; ++i) pixels.push_back(static_cast<std::uint8_t>(i * i % 251));
  Bytes out;
  const StoredImage packed =
      ImagePacker({.short_side = 2, .decoded = true}).pack({pixels, ImageShape{4, 6, 1}}, "a", out);
  EXPECT_EQ(packed.shape, (ImageShape{2, 3, 1}));
  for (std::size_t y = 0; y < 2; ++y)
    for (std::size_t x = 0; x < 3; ++x) {
      const std::size_t at = 12 * y + 2 * x;
      EXPECT_NEAR(out[3 * y + x], (pixels[at] + pixels[at + 1] + pixels[at + 6] + pixels[at + 7]) / 4.0, 0.6);
    }
}

TEST(ImagePacker, WritesJpegOfTheQualityAsked) {
  const Bytes jpeg = make_jpeg({.width = 80, .height = 64});
  const Bytes pixels = decode_whole(jpeg, JCS_RGB).pixels;
  double error[2];
  std::size_t size[2];
  for (const int i : {0, 1}) {
    Bytes out;
    const StoredImage packed = ImagePacker({.quality = i == 0 ? 50 : 95}).pack({jpeg, {}}, "a", out);
    EXPECT_EQ(packed.shape, std::nullopt);
    const WholeImage again = decode_whole(out, JCS_RGB);
    ASSERT_EQ(again.pixels.size(), pixels.size());
    error[i] = 0;
    for (std::size_t k = 0; k < pixels.size(); ++k) error[i] += std::abs(again.pixels[k] - pixels[k]);
    error[i] /= static_cast<double>(pixels.size());
    size[i] = out.size();
  }
  EXPECT_LT(error[1], error[0]);
  EXPECT_LT(error[1], 12);
  EXPECT_LT(size[0], size[1]);
}

TEST(ImagePacker, RefusesWhatItCannotPack) {
  ImagePacker packer({});
  Bytes out;
  EXPECT_THROW(packer.pack({Bytes(8), ImageShape{2, 2, 3}}, "a", out), FileError);
  EXPECT_THROW(packer.pack({Bytes(8), ImageShape{2, 2, 2}}, "a", out), FileError);
  EXPECT_THROW(packer.pack({Bytes(8), {}}, "a", out), FileError);
}

}  // namespace
}  // namespace lpsgd
