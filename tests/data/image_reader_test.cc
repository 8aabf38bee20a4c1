// ImageReader: samples against a plain resize in double precision, against torchvision's numbers, and its
// draws.
#include "data/image_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <opencv2/imgproc.hpp>

#include "core/error.h"
#include "data/image_decoder.h"
#include "data/libjpeg.h"
#include "tests/data/jpeg_maker.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;
using Kind = CropOptions::Kind;

PhiloxSequence draws(std::uint32_t sample) {
  return {5, RandomUse::augmentation, sample, 2};
}

ImageTransform evaluation(double side_ratio = 1) {
  return {.evaluate = {.side_ratio = side_ratio}};
}

Bytes read(ImageReader& reader, const StoredImage& image, const ImageShape& out,
           PhiloxSequence* random = nullptr, PixelCrop* crop = nullptr) {
  Bytes bytes(static_cast<std::size_t>(out.bytes()));
  const PixelCrop got = reader.read(image, "a", random, bytes.data());
  if (crop) *crop = got;
  return bytes;
}

Bytes read(const ImageTransform& transform, const StoredImage& image, const ImageShape& out,
           PhiloxSequence* random = nullptr, PixelCrop* crop = nullptr) {
  ImageReader reader(transform, out);
  return read(reader, image, out, random, crop);
}

/// The value at (y, x), pixels' centres at halves, from the nearest 2 x 2 pixels of the box.
double bilinear(const WholeImage& image, const Box& box, double y, double x, int c) {
  const auto at = [&](double row, double column) {
    const auto r = std::clamp<std::int64_t>(static_cast<std::int64_t>(row), 0, box.height - 1) + box.top;
    const auto k = std::clamp<std::int64_t>(static_cast<std::int64_t>(column), 0, box.width - 1) + box.left;
    return static_cast<double>(
        image.pixels[static_cast<std::size_t>((r * image.width + k) * image.channels + c)]);
  };
  const double top = std::floor(y - 0.5), left = std::floor(x - 0.5), down = y - 0.5 - top,
               right = x - 0.5 - left;
  return (1 - down) * ((1 - right) * at(top, left) + right * at(top, left + 1)) +
         down * ((1 - right) * at(top + 1, left) + right * at(top + 1, left + 1));
}

void expect_bilinear(const Bytes& got, const WholeImage& image, const Box& box, const ImageShape& out) {
  const double dy = static_cast<double>(box.height) / static_cast<double>(out.height);
  const double dx = static_cast<double>(box.width) / static_cast<double>(out.width);
  std::size_t i = 0;
  for (std::int64_t y = 0; y < out.height; ++y)
    for (std::int64_t x = 0; x < out.width; ++x)
      for (int c = 0; c < out.channels; ++c, ++i)
        ASSERT_NEAR(
            got[i],
            bilinear(image, box, (static_cast<double>(y) + 0.5) * dy, (static_cast<double>(x) + 0.5) * dx, c),
            1.01)
            << y << " " << x;
}

TEST(ImageReader, ResizesTheCropOfAScaledDecode) {
  const Bytes jpeg = make_jpeg({.width = 150, .height = 120});
  for (const auto& [out, num] : {std::pair(ImageShape{40, 40, 3}, 4),
                                 {ImageShape{80, 60, 3}, 8},
                                 {ImageShape{200, 210, 3}, 8},
                                 {ImageShape{9, 11, 3}, 1}}) {
    SCOPED_TRACE(out.height);
    const WholeImage whole = decode_whole(jpeg, JCS_RGB, num);
    const Box box = side_ratio_box(150, 120, 0.9, out.width, out.height);
    const auto edge = [num = num](std::int64_t x) { return (x * num + 4) / 8; };
    const Box scaled{edge(box.left), edge(box.top), edge(box.left + box.width) - edge(box.left),
                     edge(box.top + box.height) - edge(box.top)};
    expect_bilinear(read(evaluation(0.9), {jpeg, {}}, out), whole, scaled, out);
  }
}

TEST(ImageReader, TakesTheMeanOfAnArea) {
  const Bytes jpeg = make_jpeg({.width = 96, .height = 96});
  const WholeImage whole = decode_whole(jpeg, JCS_RGB);
  ImageTransform transform = evaluation();
  transform.interpolation = Interpolation::area;
  const ImageShape out{64, 64, 3};  // each pixel is the mean of 1.5 x 1.5
  const Bytes got = read(transform, {jpeg, {}}, out);
  for (int y = 0; y < 64; ++y)
    for (int x = 0; x < 64; ++x)
      for (int c = 0; c < 3; ++c) {
        double sum = 0;
        for (int v = 0; v < 96; ++v)
          for (int u = 0; u < 96; ++u) {
            const auto overlap = [](int i, int o) {
              return std::max(0.0, std::min(i + 1.0, 1.5 * o + 1.5) - std::max(i + 0.0, 1.5 * o));
            };
            if (overlap(v, y) > 0)
              sum += overlap(v, y) * overlap(u, x) *
                     whole.pixels[static_cast<std::size_t>((v * 96 + u) * 3 + c)];
          }
        ASSERT_NEAR(got[static_cast<std::size_t>((y * 64 + x) * 3 + c)], sum / 2.25, 1.01);
      }
}

/// A PPM file: red rises to the right, green downwards, blue along the diagonal.
Bytes gradients(int width, int height) {
  const std::string header = fmt::format("P6 {} {} 255\n", width, height);
  Bytes out(header.begin(), header.end());
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (const int value :
           {x * 255 / (width - 1), y * 255 / (height - 1), (x + y) * 255 / (width + height - 2)})
        out.push_back(static_cast<std::uint8_t>(value));
  return out;
}

// torchvision 0.14 with Pillow 9.4: Compose([Resize(256), CenterCrop(224)])(image) at (row, column) (0, 0),
// (0, 223), (223, 0), (112, 112), (223, 223).
TEST(ImageReader, EvaluatesWhatTorchvisionDoes) {
  struct Expected {
    int width, height;
    Bytes values;
  };
  const Expected cases[] = {
      {500, 375, {43, 16, 31, 210, 16, 127, 43, 238, 127, 127, 128, 127, 210, 238, 222}},
      {375, 500, {16, 43, 31, 238, 43, 127, 16, 210, 127, 128, 127, 127, 238, 210, 222}},
      {300, 257, {31, 15, 24, 223, 15, 127, 31, 239, 127, 127, 128, 128, 223, 239, 230}},
      {640, 480, {43, 16, 31, 210, 16, 127, 43, 238, 127, 127, 127, 127, 210, 238, 222}},
      {1000, 300, {93, 16, 76, 160, 16, 127, 93, 238, 127, 127, 127, 127, 160, 238, 178}}};
  for (const Interpolation interpolation : {Interpolation::linear, Interpolation::area})
    for (const Expected& expected : cases) {
      const ImageTransform transform{.evaluate = {.resize = 256}, .interpolation = interpolation};
      const Bytes got = read(transform, {gradients(expected.width, expected.height), {}}, {224, 224, 3});
      std::size_t i = 0;
      for (const std::size_t at : {0, 223, 223 * 224, 112 * 224 + 112, 223 * 224 + 223})
        for (std::size_t c = 0; c < 3; ++c, ++i)
          EXPECT_NEAR(got[3 * at + c], expected.values[i], 1) << expected.width << " " << at << " " << c;
    }
}

/// The box of the file, resized by OpenCV.
Bytes plain_crop(const Bytes& jpeg, const Box& box, const ImageShape& out) {
  ImageDecoder decoder(out.channels);
  decoder.open(jpeg, "a");
  const Pixels part = decoder.decode(box, out.height, out.width);
  cv::Mat in(static_cast<int>(part.height), static_cast<int>(part.width), CV_8UC3);
  for (int y = 0; y < in.rows; ++y)
    std::memcpy(in.ptr(y), part.data + y * part.stride, static_cast<std::size_t>(3 * in.cols));
  cv::Mat resized;
  cv::resize(in, resized, {static_cast<int>(out.width), static_cast<int>(out.height)});
  return {resized.datastart, resized.dataend};
}

TEST(ImageReader, DrawsInTheDocumentedOrder) {
  const Bytes jpeg = make_jpeg({.width = 150, .height = 120});
  const ImageShape out{48, 40, 3};
  ImageTransform transform = evaluation();
  transform.augment = {.mirror = true,
                       .crop = {.kind = Kind::random_resized},
                       .jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                       .pca = 0.5};
  ImageReader reader(transform, out);
  int mirrored = 0;
  for (std::uint32_t sample = 0; sample < 50; ++sample) {
    PhiloxSequence random = draws(sample), plain = draws(sample);
    PixelCrop crop;
    const Bytes got = read(reader, {jpeg, {}}, out, &random, &crop);

    const Box box = random_resized_box(150, 120, {0.08, 1}, {3.0 / 4, 4.0 / 3}, plain);
    const bool flips = (plain.next() & 1u) != 0;
    const Jitter jitter = draw_jitter(transform.augment.jitter, plain);
    const ColourShift shift = draw_lighting(0.5, plain);
    EXPECT_EQ(random.next(), plain.next());
    EXPECT_EQ(crop, (PixelCrop{0, 0, flips}));
    mirrored += crop.mirrored;

    Bytes expected = plain_crop(jpeg, box, out);
    ColourChanger().apply(jitter, 3, expected);
    ColourChanger::add(shift, expected);
    ASSERT_EQ(got, expected) << sample;
  }
  EXPECT_GT(mirrored, 12);
  EXPECT_LT(mirrored, 38);
}

TEST(ImageReader, CropsByASideRatio) {
  const ImageShape stored{60, 90, 3}, out{30, 30, 3};
  Bytes pixels(static_cast<std::size_t>(stored.bytes()));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i / 7);
  const WholeImage whole{90, 60, 3, pixels};
  ImageTransform transform = evaluation();
  transform.augment.crop = {.kind = Kind::side_ratio, .ratio = {0.467, 0.875}};
  for (std::uint32_t sample = 0; sample < 20; ++sample) {
    PhiloxSequence random = draws(sample), plain = draws(sample);
    const Bytes got = read(transform, {pixels, stored}, out, &random);
    expect_bilinear(got, whole, random_side_ratio_box(90, 60, {0.467, 0.875}, 30, 30, plain), out);
  }
}

TEST(ImageReader, PadsByAPlaceInThePaddedImage) {
  const ImageShape shape{5, 7, 3};
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i);
  ImageTransform transform = evaluation();
  transform.augment = {.pad = 4, .mirror = true};
  for (std::uint32_t sample = 0; sample < 50; ++sample) {
    PhiloxSequence random = draws(sample), plain = draws(sample);
    PixelCrop crop;
    EXPECT_EQ(read(transform, {pixels, shape}, shape, &random, &crop), pixels);
    const auto down = static_cast<std::int32_t>(plain.below(9)) - 4,
               across = static_cast<std::int32_t>(plain.below(9)) - 4;
    EXPECT_EQ(crop, (PixelCrop{down, across, static_cast<std::int32_t>(plain.next() & 1u)}));
  }
  PixelCrop crop{1, 1, 1};
  EXPECT_EQ(read(transform, {pixels, shape}, shape, nullptr, &crop), pixels);
  EXPECT_EQ(crop, PixelCrop{});
}

TEST(ImageReader, ManyChannelsStayAsTheyAre) {
  for (const std::int64_t channels : {2, 512, 513, 1500}) {
    const ImageShape shape{3, 4, channels};
    Bytes pixels(static_cast<std::size_t>(shape.bytes()));
    for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
    EXPECT_EQ(read(evaluation(), {pixels, shape}, shape), pixels) << channels;
  }
}

TEST(ImageReader, TurnsColourIntoLuminanceAndBack) {
  const ImageShape colour{4, 6, 3}, grey{4, 6, 1};
  Bytes pixels(72);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 37);
  const Bytes luminance = read(evaluation(), {pixels, colour}, grey);
  for (std::size_t i = 0; i < 24; ++i)
    EXPECT_NEAR(luminance[i], 0.299 * pixels[3 * i] + 0.587 * pixels[3 * i + 1] + 0.114 * pixels[3 * i + 2],
                1);
  const Bytes again = read(evaluation(), {luminance, grey}, colour);
  for (std::size_t i = 0; i < 72; ++i) EXPECT_EQ(again[i], luminance[i / 3]);
}

TEST(ImageReader, ReadsTinyImages) {
  const ImageShape out{8, 8, 3};
  for (const auto& [width, height] : {std::pair(1, 1), {1, 40}, {40, 1}, {2, 3}}) {
    const Bytes jpeg = make_jpeg({.width = width, .height = height});
    for (const auto& crop :
         {CropOptions{.kind = Kind::random_resized}, CropOptions{.kind = Kind::side_ratio}, CropOptions{}}) {
      ImageTransform transform{.augment = {.crop = crop}, .evaluate = {.resize = 16}};
      for (std::uint32_t sample = 0; sample < 20; ++sample) {
        PhiloxSequence random = draws(sample);
        EXPECT_EQ(read(transform, {jpeg, {}}, out, &random).size(), 192u);
      }
      EXPECT_EQ(read(transform, {jpeg, {}}, out).size(), 192u);
    }
  }
}

TEST(ImageReader, GoesOnAfterABadFile) {
  const Bytes jpeg = make_jpeg({}), part(jpeg.begin(), jpeg.begin() + 700);
  const ImageShape out{16, 16, 3};
  ImageReader reader(evaluation(), out);
  const Bytes expected = read(reader, {jpeg, {}}, out);
  EXPECT_THROW(read(reader, {part, {}}, out), FileError);
  EXPECT_THROW(read(reader, {Bytes{}, {}}, out), FileError);
  EXPECT_EQ(read(reader, {jpeg, {}}, out), expected);
}

TEST(ImageReader, ChecksWholeFilesAndPixels) {
  ImageReader reader(evaluation(), {16, 16, 3});
  const Bytes jpeg = make_jpeg({.width = 37, .height = 22, .orientation = 6});
  EXPECT_EQ(reader.check({jpeg, {}}, "a"), (ImageShape{37, 22, 3}));
  // Damage below the evaluation's crop.
  Bytes damaged = make_jpeg({.width = 64, .height = 400});
  damaged.erase(damaged.end() - 100, damaged.end() - 2);
  EXPECT_THROW(reader.check({damaged, {}}, "a"), FileError);
  const Bytes pixels(11);
  try {
    reader.check({pixels, ImageShape{2, 2, 3}}, "record 7 of b");
    FAIL();
  } catch (const FileError& e) {
    EXPECT_STREQ(e.what(), "record 7 of b: 11 bytes are not 2 x 2 x 3 pixels");
  }
}

}  // namespace
}  // namespace lpsgd
