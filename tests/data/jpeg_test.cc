// JpegDecoder: crops and scales against libjpeg's whole decode, kinds of files, damage and limits.
#include "data/jpeg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "core/philox.h"
#include "data/libjpeg.h"
#include "tests/data/jpeg_maker.h"

namespace lpsgd {
namespace {

using Colour = JpegKind::Colour;
using testing::HasSubstr;
using testing::StartsWith;

constexpr Box everything{0, 0, 0, 0};

/// Decodes a box, or with `everything` the whole picture, at full size.
Bytes decode(JpegDecoder& decoder, const Bytes& jpeg, Box box = everything) {
  decoder.open(jpeg, "a.jpg");
  if (box == everything) box = {0, 0, decoder.width(), decoder.height()};
  const Pixels pixels = decoder.decode(box, box.height, box.width);
  EXPECT_EQ(pixels.width, box.width);
  EXPECT_EQ(pixels.height, box.height);
  Bytes out;
  for (std::int64_t y = 0; y < pixels.height; ++y)
    out.insert(out.end(), pixels.data + y * pixels.stride,
               pixels.data + y * pixels.stride + pixels.width * pixels.channels);
  return out;
}

std::string error_of(const Bytes& jpeg, std::int64_t channels = 3) {
  JpegDecoder decoder(channels);
  try {
    decode(decoder, jpeg);
  } catch (const FileError& e) {
    return e.what();
  }
  return "no error";
}

Bytes crop(const WholeImage& image, const Box& box) {
  Bytes out;
  for (std::int64_t y = box.top; y < box.top + box.height; ++y) {
    const auto row = image.pixels.begin() + (y * image.width + box.left) * image.channels;
    out.insert(out.end(), row, row + box.width * image.channels);
  }
  return out;
}

Box random_box(int width, int height, PhiloxSequence& random) {
  const auto below = [&](std::int64_t n) -> std::int64_t {
    return random.below(static_cast<std::uint32_t>(n));
  };
  Box box{below(width), below(height), 0, 0};
  box.width = 1 + below(width - box.left);
  box.height = 1 + below(height - box.top);
  return box;
}

std::vector<JpegKind> kinds(int width, int height) {
  std::vector<JpegKind> out;
  constexpr int samplings[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}};
  for (const auto& [h, v] : samplings) {
    JpegKind kind{.width = width, .height = height, .h = h, .v = v};
    out.push_back(kind);
    kind.restart_rows = 1;
    out.push_back(kind);
    kind.progressive = true;
    out.push_back(kind);
    kind.restart_rows = 0;
    kind.arithmetic = true;
    out.push_back(kind);
  }
  out.push_back({.width = width, .height = height, .colour = Colour::grey});
  out.push_back({.width = width, .height = height, .colour = Colour::rgb, .h = 1, .v = 1});
  return out;
}

class JpegCrops : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(JpegCrops, EqualTheWholeDecodesPixels) {
  JpegDecoder colour(3), grey(1);
  PhiloxSequence random(1, RandomUse::dataset, 0);
  for (const JpegKind& kind : kinds(GetParam().first, GetParam().second)) {
    SCOPED_TRACE(kind.name());
    const Bytes jpeg = make_jpeg(kind);
    const WholeImage rgb = decode_whole(jpeg, JCS_RGB);
    EXPECT_EQ(decode(colour, jpeg), rgb.pixels);
    for (int i = 0; i < 60; ++i) {
      const Box box = random_box(kind.width, kind.height, random);
      ASSERT_EQ(decode(colour, jpeg, box), crop(rgb, box))
          << box.left << " " << box.top << " " << box.width << " " << box.height;
    }
    const WholeImage luminance = decode_whole(jpeg, JCS_GRAYSCALE);
    const Box box = random_box(kind.width, kind.height, random);
    EXPECT_EQ(decode(grey, jpeg, box), crop(luminance, box));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, JpegCrops,
                         testing::Values(std::pair(1, 1), std::pair(2, 3), std::pair(5, 4), std::pair(17, 13),
                                         std::pair(61, 97), std::pair(163, 130), std::pair(256, 64)));

/// At num/8 of the size, and no smaller one, the box has at least `out` pixels each way.
void expect_scaled(JpegDecoder& decoder, const Bytes& jpeg, const Box& box, int num, int out) {
  const WholeImage whole = decode_whole(jpeg, JCS_RGB, num);
  decoder.open(jpeg, "a.jpg");
  const Pixels pixels = decoder.decode(box, out, out);
  const auto edge = [num](std::int64_t x) { return (x * num + 4) / 8; };
  const Box scaled{edge(box.left), edge(box.top), edge(box.left + box.width) - edge(box.left),
                   edge(box.top + box.height) - edge(box.top)};
  ASSERT_EQ(pixels.width, scaled.width);
  ASSERT_EQ(pixels.height, scaled.height);
  const Bytes expected = crop(whole, scaled);
  for (std::int64_t y = 0; y < pixels.height; ++y)
    ASSERT_EQ(std::memcmp(pixels.data + y * pixels.stride, expected.data() + y * scaled.width * 3,
                          static_cast<std::size_t>(scaled.width * 3)),
              0);
}

TEST(JpegDecoder, ScalesToTheSmallestSizeThatIsLargeEnough) {
  JpegDecoder decoder(3);
  for (const JpegKind& kind : kinds(163, 130)) {
    SCOPED_TRACE(kind.name());
    const Bytes jpeg = make_jpeg(kind);
    for (const Box& box : {Box{11, 9, 89, 83}, Box{70, 3, 83, 111}})
      for (const auto& [num, out] : {std::pair(1, 10), {2, 11}, {2, 20}, {4, 21}, {4, 41}, {8, 42}, {8, 82}})
        expect_scaled(decoder, jpeg, box, num, out);
  }
}

TEST(JpegDecoder, TurnsInvertedInksIntoColoursAndLuminance) {
  for (const Colour colour : {Colour::cmyk, Colour::ycck}) {
    const Bytes jpeg = make_jpeg({.width = 41, .height = 23, .colour = colour, .h = 1, .v = 1});
    const WholeImage inks = decode_whole(jpeg, JCS_CMYK);
    Bytes rgb, grey;
    for (std::size_t i = 0; i < inks.pixels.size(); i += 4) {
      double luminance = 0.5;
      for (std::size_t c = 0; c < 3; ++c) {
        const int value =
            (2 * inks.pixels[i + c] * inks.pixels[i + 3] + 255) / 510;  // nearest to c * k / 255
        rgb.push_back(static_cast<std::uint8_t>(value));
        luminance += value * (c == 0 ? 0.299 : c == 1 ? 0.587 : 0.114);
      }
      grey.push_back(static_cast<std::uint8_t>(luminance));
    }
    JpegDecoder decoder(3), grey_decoder(1);
    EXPECT_EQ(decode(decoder, jpeg), rgb);
    const Bytes got = decode(grey_decoder, jpeg);
    ASSERT_EQ(got.size(), grey.size());
    for (std::size_t i = 0; i < grey.size(); ++i) EXPECT_NEAR(got[i], grey[i], 1);
  }
}

TEST(JpegDecoder, RefusesTruncatedFiles) {
  for (const bool progressive : {false, true}) {
    const Bytes jpeg = make_jpeg({.width = 40, .height = 40, .progressive = progressive});
    JpegDecoder decoder(3);
    for (std::size_t size = 0; size < jpeg.size(); ++size) {
      // A block of exactly the size: AddressSanitizer sees what lies behind it.
      const Bytes part(jpeg.begin(), jpeg.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_THROW(decode(decoder, part), FileError) << size;
    }
    EXPECT_EQ(decode(decoder, jpeg).size(), 40u * 40 * 3);
    EXPECT_EQ(error_of({jpeg.begin(), jpeg.end() - 2}), "a.jpg: truncated: the JPEG file has no end marker");
  }
}

TEST(JpegDecoder, RefusesDamagedDataInTheCrop) {
  const JpegKind kind{.width = 200, .height = 200};
  const Bytes jpeg = make_jpeg(kind);
  Bytes damaged = jpeg;
  // Half of the data is missing, but the end marker is there.
  const std::size_t scan = find_marker(jpeg, 0xDA);
  damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>((scan + jpeg.size()) / 2), damaged.end() - 2);
  EXPECT_EQ(error_of(damaged), "a.jpg: Corrupt JPEG data: premature end of data segment");
  JpegDecoder decoder(3);
  EXPECT_EQ(decode(decoder, damaged, {20, 10, 100, 20}), decode(decoder, jpeg, {20, 10, 100, 20}));
  EXPECT_THROW(decode(decoder, damaged, {20, 180, 100, 20}), FileError);
}

TEST(JpegDecoder, AcceptsWhatLosesNoData) {
  const Bytes jpeg = make_jpeg({});
  JpegDecoder decoder(3);
  const Bytes expected = decode(decoder, jpeg);
  Bytes odd = jpeg;
  const std::size_t tables = find_marker(jpeg, 0xDB);
  odd.insert(odd.begin() + static_cast<std::ptrdiff_t>(tables), {'a', 'b', 'c'});
  odd.insert(odd.end(), 1000, std::uint8_t{0});
  EXPECT_EQ(decode(decoder, odd), expected);
}

TEST(JpegDecoder, RefusesHugeImagesBeforeItTakesMemory) {
  Bytes jpeg = make_jpeg({});
  const std::size_t frame = find_marker(jpeg, 0xC0);
  const std::uint8_t size[] = {0x2E, 0xE0, 0x27, 0x10};  // height 12000, width 10000
  std::copy(std::begin(size), std::end(size), jpeg.begin() + static_cast<std::ptrdiff_t>(frame) + 5);
  EXPECT_EQ(error_of(jpeg), "a.jpg: 10000 x 12000 pixels are more than the limit of 100 megapixels");
}

TEST(JpegDecoder, RefusesTooManyScans) {
  const Bytes jpeg = make_jpeg({.progressive = true});
  const std::size_t first = find_marker(jpeg, 0xDA);
  const std::size_t second = find_marker(jpeg, 0xC4, first);
  const auto at = [&](std::size_t i) { return jpeg.begin() + static_cast<std::ptrdiff_t>(i); };
  const auto repeated = [&](int times) {
    Bytes out(jpeg.begin(), at(second));
    for (int i = 0; i < times; ++i) out.insert(out.end(), at(first), at(second));
    out.insert(out.end(), at(second), jpeg.end());
    return out;
  };
  EXPECT_EQ(error_of(repeated(5)), "no error");
  EXPECT_EQ(error_of(repeated(100)), "a.jpg: more than 100 scans");
}

TEST(JpegDecoder, NamesTheFileInEveryError) {
  EXPECT_THAT(error_of({}), StartsWith("a.jpg: "));
  EXPECT_THAT(error_of({'t', 'e', 'x', 't'}), HasSubstr("Not a JPEG file"));
  Bytes precision = make_jpeg({});
  precision[find_marker(precision, 0xC0) + 4] = 12;
  EXPECT_EQ(error_of(precision), "a.jpg: Unsupported JPEG data precision 12");
}

TEST(JpegDecoder, ReadsTheOrientation) {
  JpegDecoder decoder(3);
  for (const bool big_endian : {false, true})
    for (int orientation = 0; orientation <= 9; ++orientation) {
      decoder.open(make_jpeg({.orientation = orientation, .big_endian = big_endian}), "a.jpg");
      EXPECT_EQ(decoder.orientation(), orientation < 1 || orientation > 8 ? 1 : orientation);
    }
}

}  // namespace
}  // namespace lpsgd
