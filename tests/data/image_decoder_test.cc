// ImageDecoder: every format gives the pixels that were written, upright, and damage is an error.
#include "data/image_decoder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <opencv2/imgcodecs.hpp>

#include "core/error.h"
#include "data/image_header.h"
#include "data/libjpeg.h"
#include "tests/data/jpeg_maker.h"

namespace lpsgd {
namespace {

Bytes bytes_of(const Pixels& pixels) {
  Bytes out;
  for (std::int64_t y = 0; y < pixels.height; ++y)
    out.insert(out.end(), pixels.data + y * pixels.stride,
               pixels.data + y * pixels.stride + pixels.width * pixels.channels);
  return out;
}

Bytes decode(ImageDecoder& decoder, const Bytes& bytes) {
  decoder.open(bytes, "dir/a.jpg");
  return bytes_of(
      decoder.decode({0, 0, decoder.width(), decoder.height()}, decoder.height(), decoder.width()));
}

std::string error_of(const Bytes& bytes) {
  ImageDecoder decoder(3);
  try {
    decode(decoder, bytes);
  } catch (const FileError& e) {
    return e.what();
  }
  return "no error";
}

/// Values of 8 or 16 bits, blue first, as OpenCV writes them. 257 v of 65535 is v of 255.
cv::Mat picture(int channels, bool deep = false) {
  cv::Mat out(7, 11, CV_MAKETYPE(deep ? CV_16U : CV_8U, channels));
  for (int y = 0; y < out.rows; ++y)
    for (int x = 0; x < out.cols * channels; ++x) {
      const auto value = static_cast<std::uint8_t>(x * 7 + y * 31 + x * y);
      if (deep)
        out.ptr<std::uint16_t>(y)[x] = static_cast<std::uint16_t>(value * 257);
      else
        out.ptr(y)[x] = value;
    }
  return out;
}

/// The picture's pixels as red, green, blue.
Bytes expected_rgb(int channels) {
  Bytes out;
  for (int y = 0; y < 7; ++y)
    for (int x = 0; x < 11; ++x)
      for (int c = 0; c < 3; ++c) {
        const int at = x * channels + (channels == 1 ? 0 : 2 - c);
        out.push_back(static_cast<std::uint8_t>(at * 7 + y * 31 + at * y));
      }
  return out;
}

Bytes encode(const char* extension, const cv::Mat& image, const std::vector<int>& options = {}) {
  Bytes out;
  cv::imencode(extension, image, out, options);
  return out;
}

struct Made {
  const char* format;
  Bytes bytes, rgb;
};

std::vector<Made> files() {
  const std::vector<int> lossless{cv::IMWRITE_WEBP_QUALITY, 101};
  return {
      {"PNG", encode(".png", picture(3)), expected_rgb(3)},
      {"PNG with alpha", encode(".png", picture(4)), expected_rgb(4)},
      {"PNG grey", encode(".png", picture(1)), expected_rgb(1)},
      {"PNG 16 bit", encode(".png", picture(3, true)), expected_rgb(3)},
      {"PNG grey 16 bit", encode(".png", picture(1, true)), expected_rgb(1)},
      {"BMP", encode(".bmp", picture(3)), expected_rgb(3)},
      {"BMP grey", encode(".bmp", picture(1)), expected_rgb(1)},
      {"WebP", encode(".webp", picture(3), lossless), expected_rgb(3)},
      {"TIFF", encode(".tiff", picture(3)), expected_rgb(3)},
      {"TIFF grey", encode(".tiff", picture(1)), expected_rgb(1)},
      {"TIFF 16 bit", encode(".tiff", picture(3, true)), expected_rgb(3)},
      {"PPM", encode(".ppm", picture(3)), expected_rgb(3)},
      {"PGM", encode(".pgm", picture(1)), expected_rgb(1)},
  };
}

TEST(ImageDecoder, GivesThePixelsOfEveryFormat) {
  ImageDecoder decoder(3);
  for (const Made& made : files()) EXPECT_EQ(decode(decoder, made.bytes), made.rgb) << made.format;
}

TEST(ImageDecoder, CropsEveryFormat) {
  ImageDecoder decoder(3);
  for (const Made& made : files()) {
    decoder.open(made.bytes, "a");
    const Bytes got = bytes_of(decoder.decode({2, 3, 5, 4}, 4, 5));
    Bytes expected;
    for (int y = 3; y < 7; ++y)
      expected.insert(expected.end(), made.rgb.begin() + (y * 11 + 2) * 3,
                      made.rgb.begin() + (y * 11 + 7) * 3);
    EXPECT_EQ(got, expected) << made.format;
  }
}

TEST(ImageDecoder, GivesLuminance) {
  ImageDecoder decoder(1);
  for (const Made& made : files()) {
    const Bytes got = decode(decoder, made.bytes);
    ASSERT_EQ(got.size(), 77u) << made.format;
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], 0.299 * made.rgb[3 * i] + 0.587 * made.rgb[3 * i + 1] + 0.114 * made.rgb[3 * i + 2],
                  1.2)
          << made.format;
  }
}

/// libpng would go through linear light.
TEST(ImageDecoder, AGammaDoesNotChangeLuminance) {
  const Bytes plain = encode(".png", picture(3));
  Bytes with_gamma = plain;
  constexpr std::uint8_t gamma[] = {0, 0, 0, 4, 'g', 'A', 'M', 'A', 0, 0, 0xb1, 0x8f, 0x0b, 0xfc, 0x61, 0x05};
  with_gamma.insert(with_gamma.begin() + 33, std::begin(gamma), std::end(gamma));  // behind IHDR
  ImageDecoder decoder(1);
  EXPECT_EQ(decode(decoder, with_gamma), decode(decoder, plain));
}

/// libtiff goes on behind them, with black rows.
TEST(ImageDecoder, DamagedDataOfATiffAreAnError) {
  constexpr int deflate = 8;
  Bytes bytes = encode(".tiff", picture(3), {cv::IMWRITE_TIFF_COMPRESSION, deflate});
  ImageDecoder decoder(3);
  EXPECT_EQ(decode(decoder, bytes), expected_rgb(3));
  std::fill(bytes.begin() + 14, bytes.begin() + 40, std::uint8_t{0xff});
  EXPECT_THAT(error_of(bytes), testing::HasSubstr("the TIFF image is damaged"));
  EXPECT_EQ(decode(decoder, encode(".tiff", picture(3))), expected_rgb(3)) << "the next one is whole";
}

Bytes from_hex(std::string_view hex) {
  Bytes out;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out.push_back(static_cast<std::uint8_t>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return out;
}

TEST(ImageDecoder, ReadsPalettesAndBits) {
  // Pillow: a 3 x 2 image, black but for red at the top left, quantize(4); and 3 x 2 of mode "1".
  const Bytes palette = from_hex(
      "89504e470d0a1a0a0000000d4948445200000003000000020203000000e01a8e890000000c504c5445ff000000000000000000"
      "0000"
      "03f046f30000000c49444154789c6310610801000094006907617ba30000000049454e44ae426082");
  const Bytes bits = from_hex(
      "89504e470d0a1a0a0000000d4948445200000003000000020100000000b50f5bb70000000c49444154789c6370603800000184"
      "01010a"
      "7f90500000000049454e44ae426082");
  ImageDecoder decoder(3), grey(1);
  Bytes red(18, 0);
  red[0] = 255;
  EXPECT_EQ(decode(decoder, palette), red);
  EXPECT_EQ(decode(grey, bits), (Bytes{0, 255, 0, 255, 255, 0}));
}

/// What `box` of the upright image shows of the stored one, which is `stored_width` wide. `height`, `width`:
/// of the upright one.
Bytes upright(const Bytes& stored, int stored_width, int height, int width, int orientation, const Box& box) {
  // EXIF: which sides of the scene the stored row 0 and column 0 show.
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  Bytes out;
  for (std::int64_t y = box.top; y < box.top + box.height; ++y)
    for (std::int64_t x = box.left; x < box.left + box.width; ++x) {
      const std::int64_t u = from_right ? width - 1 - x : x, v = from_below ? height - 1 - y : y;
      const std::int64_t at = orientation >= 5 ? u * stored_width + v : v * stored_width + u;
      for (int c = 0; c < 3; ++c) out.push_back(stored[static_cast<std::size_t>(at * 3 + c)]);
    }
  return out;
}

TEST(ImageDecoder, TurnsJpegsUpright) {
  ImageDecoder decoder(3);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Bytes jpeg = make_jpeg({.width = 37, .height = 22, .h = 1, .v = 1, .orientation = orientation});
    const WholeImage stored = decode_whole(jpeg, JCS_RGB);
    const bool turned = orientation >= 5;
    const int width = turned ? 22 : 37, height = turned ? 37 : 22;
    decoder.open(jpeg, "a.jpg");
    ASSERT_EQ(decoder.width(), width);
    ASSERT_EQ(decoder.height(), height);
    const Box box{3, 5, 12, 9};
    const Bytes got = bytes_of(decoder.decode(box, box.height, box.width));
    EXPECT_EQ(got, upright(stored.pixels, 37, height, width, orientation, box)) << orientation;
  }
}

Bytes with_orientation(Bytes png, int orientation) {
  Bytes chunk{0,    0,  0, 26, 'e', 'X', 'I', 'f', 'I',
              'I',  42, 0, 8,  0,   0,   0,   1,   0,
              0x12, 1,  3, 0,  1,   0,   0,   0,   static_cast<std::uint8_t>(orientation),
              0,    0,  0, 0,  0,   0,   0};
  const auto sum = static_cast<std::uint32_t>(crc32(0, chunk.data() + 4, 30));
  for (int shift = 24; shift >= 0; shift -= 8) chunk.push_back(static_cast<std::uint8_t>(sum >> shift));
  png.insert(png.begin() + 33, chunk.begin(), chunk.end());  // behind IHDR
  return png;
}

TEST(ImageDecoder, TurnsPngsUpright) {
  ImageDecoder decoder(3);
  const Bytes plain = encode(".png", picture(3)), stored = expected_rgb(3);
  for (const int orientation : {6, 1, 8, 2, 5, 3, 7, 4}) {
    const bool turned = orientation >= 5;
    const int width = turned ? 7 : 11, height = turned ? 11 : 7;
    const Bytes got = decode(decoder, with_orientation(plain, orientation));
    ASSERT_EQ(decoder.width(), width) << orientation;
    ASSERT_EQ(decoder.height(), height) << orientation;
    EXPECT_EQ(got, upright(stored, 11, height, width, orientation, {0, 0, width, height})) << orientation;
    EXPECT_EQ(decode(decoder, plain), stored) << "behind " << orientation;
  }
}

TEST(ImageDecoder, RefusesTruncatedFiles) {
  for (const Made& made : files()) {
    ImageDecoder decoder(3);
    // TIFF ends with four zeros: that there is no second image.
    const std::size_t spare = std::string_view(made.format).starts_with("TIFF") ? 4 : 0;
    for (std::size_t size = 0; size < made.bytes.size() - spare; ++size) {
      const Bytes part(made.bytes.begin(), made.bytes.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_THROW(decode(decoder, part), FileError)
          << made.format << " " << size << " of " << made.bytes.size();
    }
    EXPECT_EQ(decode(decoder, made.bytes), made.rgb);
  }
}

TEST(ImageDecoder, ADamagedHeaderDoesNotGiveTheImageBefore) {
  ImageDecoder decoder(3);
  const std::string good = "P6\n2 2\n255\n123456789012", cut = "P6\n9 9\n";
  decode(decoder, {good.begin(), good.end()});
  EXPECT_THROW(decode(decoder, {cut.begin(), cut.end()}), FileError);
}

TEST(ImageDecoder, NamesWhatIsWrong) {
  EXPECT_EQ(error_of({}), "dir/a.jpg: the file is empty");
  EXPECT_EQ(error_of({'h', 'e', 'l', 'l', 'o'}),
            "dir/a.jpg: not an image of a known format (JPEG, PNG, BMP, WebP, TIFF, PBM, PGM, PPM)");
  Bytes png = encode(".png", picture(3));
  EXPECT_EQ(error_of({png.begin(), png.end() - 12}), "dir/a.jpg: truncated: the PNG file has no end");
  png[45] ^= 0x55;  // in the compressed pixels
  EXPECT_THAT(error_of(png), testing::StartsWith("dir/a.jpg: the PNG image is damaged: IDAT: "));
}

TEST(ImageDecoder, RefusesHugeImagesFromTheirHeaders) {
  constexpr std::int64_t at_png = 16, at_bmp = 18;
  const char* expected = "dir/a.jpg: 10001 x 10000 pixels are more than the limit of 100 megapixels";
  Bytes png = encode(".png", picture(3)), bmp = encode(".bmp", picture(3));
  const Bytes big{0, 0, 0x27, 0x11, 0, 0, 0x27, 0x10}, little{0x11, 0x27, 0, 0, 0x10, 0x27, 0, 0};
  std::copy(big.begin(), big.end(), png.begin() + at_png);
  std::copy(little.begin(), little.end(), bmp.begin() + at_bmp);
  EXPECT_EQ(error_of(png), expected);
  EXPECT_EQ(error_of(bmp), expected);
  const std::string ppm = "P6 # comment\n10001\n10000 255\n";
  EXPECT_EQ(error_of({ppm.begin(), ppm.end()}), expected);
  // An extended WebP file: 24 bits each of width - 1 and height - 1.
  Bytes webp{'R', 'I', 'F', 'F', 22, 0, 0, 0, 'W', 'E', 'B', 'P',
             'V', 'P', '8', 'X', 10, 0, 0, 0, 0,   0,   0,   0};
  for (const int byte : {0x10, 0x27, 0, 0x0F, 0x27, 0}) webp.push_back(static_cast<std::uint8_t>(byte));
  EXPECT_EQ(error_of(webp), expected);
  const std::int64_t limit = max_image_pixels;
  EXPECT_NO_THROW(check_image_size(10000, limit / 10000, "a"));
  EXPECT_THROW(check_image_size(1, limit + 1, "a"), FileError);
  EXPECT_THROW(check_image_size(INT64_MAX, INT64_MAX, "a"), FileError);
}

TEST(ImageDecoder, RefusesHugeTiles) {
  const auto tiff = [](std::uint32_t tile_width, std::uint32_t tile_height, std::uint32_t tile_type = 4) {
    Bytes out{'I', 'I', 42, 0, 8, 0, 0, 0, 4, 0};
    const auto number = [&](std::uint32_t value, int bytes) {
      for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::uint8_t>(value >> 8 * i));
    };
    const std::uint32_t tags[4][2] = {{256, 8}, {257, 8}, {322, tile_width}, {323, tile_height}};
    for (const auto& [tag, value] : tags) {
      number(tag, 2);
      number(tag < 322 ? 4 : tile_type, 2);  // 4: LONG
      number(1, 4);
      number(value, 4);
    }
    number(0, 4);
    return out;
  };
  EXPECT_EQ(read_image_header(tiff(10000, 10000), "a").width, 8);
  for (const auto& [width, height] : {std::pair{10001u, 10000u},
                                      {10000u, 10001u},
                                      {65536u, 65536u},
                                      {0xFFFFFFF0u, 0xFFFFFFF0u},
                                      {1u, 0xFFFFFFFFu}})
    EXPECT_EQ(error_of(tiff(width, height)), "dir/a.jpg: the TIFF file's tiles are too large");
  for (const std::uint32_t type : {0, 6, 8, 9, 13, 16, 17})  // 9: SLONG, 16: LONG8; the library reads them
    EXPECT_EQ(error_of(tiff(32768, 32752, type)),
              "dir/a.jpg: the size of the TIFF file's tiles is no number of a known type");
}

TEST(ImageHeader, HasTheSizeOfEveryFormat) {
  for (const Made& made : files()) {
    const ImageHeader header = read_image_header(made.bytes, "a");
    EXPECT_EQ(header.width, 11) << made.format;
    EXPECT_EQ(header.height, 7) << made.format;
  }
  for (const int quality : {50, 101}) {
    const Bytes webp = encode(".webp", picture(4), {cv::IMWRITE_WEBP_QUALITY, quality});
    EXPECT_EQ(read_image_header(webp, "a").width, 11);
    EXPECT_EQ(read_image_header(webp, "a").height, 7);
  }
}

}  // namespace
}  // namespace lpsgd
