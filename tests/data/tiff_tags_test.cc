// Tags of TIFF directories and EXIF's orientation: both byte orders, and no damage reads outside.
#include "data/tiff_tags.h"

#include <gtest/gtest.h>

#include <vector>

namespace lpsgd {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Tags 256 (SHORT 640), 257 (LONG 100000), 258 (three SHORTs elsewhere: 7, 8, 9), 270 (text).
Bytes directory(bool big) {
  Bytes out(2, big ? 'M' : 'I');
  const auto number = [&](std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      out.push_back(static_cast<std::uint8_t>(value >> 8 * (big ? bytes - 1 - i : i)));
  };
  const auto entry = [&](std::uint32_t tag, std::uint32_t type, std::uint32_t count, std::uint32_t value,
                         int bytes) {
    number(tag, 2);
    number(type, 2);
    number(count, 4);
    number(value, bytes);
    number(0, 4 - bytes);
  };
  number(42, 2);
  number(8, 4);
  number(4, 2);
  entry(256, 3, 1, 640, 2);
  entry(257, 4, 1, 100000, 4);
  entry(258, 3, 3, 62, 4);
  entry(270, 2, 4, 0x61626364, 4);
  number(0, 4);
  for (const std::uint32_t x : {7u, 8u, 9u}) number(x, 2);
  return out;
}

TEST(TiffTags, AreReadInBothByteOrders) {
  for (const bool big : {false, true}) {
    const Bytes bytes = directory(big);
    const TiffTags tags(bytes);
    EXPECT_TRUE(tags.valid());
    EXPECT_EQ(tags.find(256), 640u);
    EXPECT_EQ(tags.find(257), 100000u);
    EXPECT_EQ(tags.find(258), 7u);
    EXPECT_EQ(tags.find(270), std::nullopt);
    EXPECT_EQ(tags.find(300), std::nullopt);
  }
}

TEST(TiffTags, OfDamagedBytesStayInside) {
  const Bytes whole = directory(true);
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const TiffTags tags(part);
    EXPECT_EQ(tags.valid(), size >= 10 + 4 * 12);
    for (const std::uint16_t tag : {256, 257, 258, 270}) tags.find(tag);
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes damaged = whole;
    damaged[at] = 0xFF;
    const TiffTags tags(damaged);
    for (const std::uint16_t tag : {256, 257, 258, 270}) tags.find(tag);
  }
}

TEST(ExifOrientation, IsOneWhereThereIsNone) {
  EXPECT_EQ(exif_orientation({}), 1);
  Bytes other{'E', 'x', 'i', 'f', 0, 0};
  EXPECT_EQ(exif_orientation(other), 1);
  const Bytes tags = directory(false);  // without an orientation
  other.insert(other.end(), tags.begin(), tags.end());
  EXPECT_EQ(exif_orientation(other), 1);
}

}  // namespace
}  // namespace lpsgd
