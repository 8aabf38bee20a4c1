// What is wrong with the header of an image file that is no JPEG.
#include "data/image_header.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string_view>

#include "data/image_decoder.h"
#include "data/image_reader.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using namespace std::string_view_literals;

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string error(std::string_view file) {
  return error_of([&] { read_image_header(bytes_of(file), "a"); });
}

TEST(ImageHeader, SaysWhatIsWrong) {
  EXPECT_EQ(error("\x89PNG\r\n\x1a\n\0\0\0\x0dIEND"sv), "a: a PNG file without a header");
  EXPECT_EQ(error("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0"sv), "a: truncated inside the image's header");
  EXPECT_EQ(error("BM"), "a: truncated inside the image's header");
  EXPECT_EQ(error("RIFF\x20\0\0\0WEBPVP8 "sv), "a: truncated: the WebP file is longer");
  EXPECT_EQ(error("RIFF\x08\0\0\0WEBPNONE"sv), "a: a WebP file without an image");
  EXPECT_EQ(error("II*\0\x08\0\0\0\0\0"sv), "a: a TIFF file without a size, or truncated");
  EXPECT_EQ(error("MM\0*"sv), "a: a TIFF file without a size, or truncated");
  EXPECT_EQ(error("P6 x 4 255\n"), "a: nonsense in the header of a PBM, PGM or PPM file");
  EXPECT_EQ(error("P6 # a comment"), "a: truncated inside the image's header");
  EXPECT_EQ(error("P6 0 5 255\n"), "a: an image of 0 x 5 pixels");
  for (const std::string_view kind : {"P2", "P3", "P5", "P6"})
    EXPECT_EQ(error(std::string(kind) + " 4 5 # of 12 bits\n4095\n"),
              "a: a PGM or PPM file whose largest value is 4095; allowed: 255 and 65535");
  EXPECT_EQ(error("P4 4 5\n12345"), "no error of this type");
  EXPECT_EQ(error("P1 4 5\n"), "no error of this type");
  EXPECT_EQ(error("RIFF\x12\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\x03\0\0\x03\0\0"sv),
            "a: an animated WebP file, which is not read");
}

std::string little(std::uint32_t value, std::size_t bytes) {
  std::string out;
  for (; bytes > 0; --bytes, value >>= 8) out += static_cast<char>(value & 0xff);
  return out;
}

// OpenCV would print a line of its own.
TEST(ImageHeader, RowsThatAreMissing) {
  const auto cut = [](std::string file, std::size_t rows) {
    file.resize(file.size() + rows);
    EXPECT_EQ(error(file), "no error of this type");
    file.pop_back();
    return error(file);
  };
  EXPECT_EQ(cut("P4 9 5\n", 10), "a: truncated: 16 bytes, the PNM file's header says 17");
  EXPECT_EQ(cut("P5 # grey\n9 5 255 ", 45), "a: truncated: 62 bytes, the PNM file's header says 63");
  EXPECT_EQ(cut("P5 9 5 65535\n", 90), "a: truncated: 102 bytes, the PNM file's header says 103");
  EXPECT_EQ(cut("P6\n9 5\n255\n", 135), "a: truncated: 145 bytes, the PNM file's header says 146");
  EXPECT_EQ(cut("P6\n9 5\n65535\n", 270), "a: truncated: 282 bytes, the PNM file's header says 283");
  const auto bmp = [](std::uint32_t bits, std::uint32_t height) {
    return "BM" + little(0, 8) + little(54, 4) + little(40, 4) + little(9, 4) + little(height, 4) +
           little(1, 2) + little(bits, 2) + little(0, 24);
  };
  EXPECT_EQ(cut(bmp(24, 5), 140), "a: truncated: 193 bytes, the BMP file's header says 194");
  EXPECT_EQ(cut(bmp(24, -5u), 140), "a: truncated: 193 bytes, the BMP file's header says 194");
  EXPECT_EQ(cut(bmp(8, 5), 60), "a: truncated: 113 bytes, the BMP file's header says 114");
  const std::string old = "BM" + little(0, 8) + little(26, 4) + little(12, 4) + little(9, 2) + little(5, 2) +
                          little(1, 2) + little(4, 2);
  EXPECT_EQ(cut(old, 40), "a: truncated: 65 bytes, the BMP file's header says 66");
}

TEST(ImageHeader, WhatOpenCvReadsWronglyIsRefused) {
  const auto bmp = [](std::uint32_t compression, std::uint32_t red) {
    return "BM" + little(0, 12) + little(40, 4) + little(4, 4) + little(5, 4) + little(1, 2) + little(32, 2) +
           little(compression, 4) + little(0, 20) + little(red, 4) + little(0xff00, 4) + little(0xff, 4) +
           little(0, 4 * 4 * 5);
  };
  EXPECT_EQ(error(bmp(3, 0xff0000)), "no error of this type");
  EXPECT_EQ(error(bmp(0, 0)), "no error of this type");
  EXPECT_EQ(error(bmp(3, 0xff000000)), "a: a BMP file whose colours lie in unusual places (BITFIELDS)");
  const auto tiff = [](std::uint32_t extra) {
    std::string out = "II*" + little(0, 1) + little(8, 4) + little(3, 2);
    for (const auto& [tag, value] : {std::pair{256u, 4u}, {257u, 5u}, {338u, extra}})
      out += little(tag, 2) + little(3, 2) + little(1, 4) + little(value, 4);
    return out + little(0, 4);
  };
  EXPECT_EQ(error(tiff(0)), "no error of this type");
  EXPECT_EQ(error(tiff(2)),
            "a: a TIFF file with transparency (unassociated alpha), whose colours would be changed by it");
}

TEST(ImageHeader, FilesOfTwoGibibytesAreRefused) {
  const std::size_t size = (std::size_t{1} << 31) + 1;
  void* at =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) GTEST_SKIP() << "no address space";
  std::memcpy(at, "P6 4 4 255\n", 11);
  ImageDecoder decoder(3);
  EXPECT_EQ(error_of([&] {
              decoder.open({static_cast<const std::uint8_t*>(at), size}, "a");
            }),
            "a: a file of 2147483649 bytes is too large for an image");
  ::munmap(at, size);
}

TEST(ImageReader, FilesHaveOneOrThreeChannels) {
  ImageReader reader({.evaluate = {.side_ratio = 1}}, {4, 4, 2});
  std::vector<std::uint8_t> out(32);
  EXPECT_EQ(error_of([&] {
              reader.read({bytes_of("P6 4 4 255\n"), std::nullopt}, "a", nullptr, out.data());
            }),
            "a: an image file cannot become 2 channels");
}

}  // namespace
}  // namespace lpsgd
