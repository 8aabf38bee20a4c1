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
