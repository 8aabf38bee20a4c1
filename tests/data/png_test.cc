// PngDecoder: every kind of PNG file gives the pixels that were written, in blue, green, red, and nothing is
// printed.
#include "data/png.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <functional>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lpsgd {
namespace {

using Data = std::vector<std::uint8_t>;

void put(Data& to, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<std::uint8_t>(number >> shift));
}

/// A chunk, as the PNG specification lays it out.
Data chunk(std::string_view type, const Data& content, std::uint32_t damage = 0) {
  Data out, summed(type.begin(), type.end());
  summed.insert(summed.end(), content.begin(), content.end());
  put(out, static_cast<std::uint32_t>(content.size()));
  out.insert(out.end(), summed.begin(), summed.end());
  put(out, static_cast<std::uint32_t>(crc32(0, summed.data(), static_cast<uInt>(summed.size()))) ^ damage);
  return out;
}

constexpr int width = 5, height = 3;

struct Kind {
  std::uint8_t colour, depth;  // as IHDR has them
  std::uint8_t interlaced = 0;
  int channels = 3;
  /// A stored value of `depth` bits.
  std::function<int(int x, int y, int channel)> value;
};

int rgb_value(int x, int y, int channel) {
  return x * 7 + y * 31 + channel * 50;
}

/// The rows from (y0, x0) on, in steps of dy and dx: each a filter of 0, then its values from the highest bit
/// on.
void put_rows(Data& raw, const Kind& kind, int y0, int x0, int dy, int dx) {
  if (x0 >= width) return;
  for (int y = y0; y < height; y += dy) {
    raw.push_back(0);
    int used = 8;
    for (int x = x0; x < width; x += dx)
      for (int c = 0; c < kind.channels; ++c)
        for (int bit = kind.depth - 1; bit >= 0; --bit) {
          if (used == 8) raw.push_back(0), used = 0;
          raw.back() |= static_cast<std::uint8_t>((kind.value(x, y, c) >> bit & 1) << (7 - used++));
        }
  }
}

Data make_png(const Kind& kind, const Data& before = {}, const Data& after = {}) {
  Data out{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header, raw;
  const auto add = [&](const Data& more) { out.insert(out.end(), more.begin(), more.end()); };
  put(header, width), put(header, height);
  for (const int byte : {int{kind.depth}, int{kind.colour}, 0, 0, int{kind.interlaced}})
    header.push_back(static_cast<std::uint8_t>(byte));
  add(chunk("IHDR", header));
  add(before);
  constexpr int adam7[7][4]{{0, 0, 8, 8}, {0, 4, 8, 8}, {4, 0, 8, 4}, {0, 2, 4, 4},
                            {2, 0, 4, 2}, {0, 1, 2, 2}, {1, 0, 2, 1}};
  if (kind.interlaced == 0) put_rows(raw, kind, 0, 0, 1, 1);
  for (int pass = 0; pass < 7 && kind.interlaced != 0; ++pass)
    put_rows(raw, kind, adam7[pass][0], adam7[pass][1], adam7[pass][2], adam7[pass][3]);
  Data packed(compressBound(raw.size()));
  uLongf size = packed.size();
  compress(packed.data(), &size, raw.data(), raw.size());
  packed.resize(size);
  add(chunk("IDAT", packed));
  add(after);
  add(chunk("IEND", {}));
  return out;
}

Data decode(PngDecoder& decoder, const Data& file) {
  const Pixels pixels = decoder.decode(file, "a.png");
  EXPECT_EQ(pixels.width, width);
  EXPECT_EQ(pixels.height, height);
  EXPECT_EQ(pixels.channels, 3);
  return {pixels.data, pixels.data + pixels.height * pixels.stride};
}

/// In blue, green, red.
Data expected(const std::function<int(int x, int y, int channel)>& rgb) {
  Data out;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 2; c >= 0; --c) out.push_back(static_cast<std::uint8_t>(rgb(x, y, c)));
  return out;
}

constexpr std::uint8_t grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgba = 6;

TEST(PngDecoder, GivesThePixelsOfEveryKind) {
  const auto grey_value = [](int x, int y, int) { return rgb_value(x, y, 0); };
  const auto two_bits = [](int x, int y, int) { return (x + 2 * y) % 4; };
  const auto deep = [](int x, int y, int c) { return c == 3 ? 777 : rgb_value(x, y, c) * 256 + 255; };
  const auto deep_grey = [](int x, int y, int c) { return c == 1 ? 777 : rgb_value(x, y, 0) * 256 + 255; };
  const auto with_alpha = [](int x, int y, int c) { return c == 3 ? 0 : rgb_value(x, y, c); };
  Data colours(12);
  for (std::size_t i = 0; i < colours.size(); ++i) colours[i] = static_cast<std::uint8_t>(20 * i);
  Data of_palette = chunk("PLTE", colours), alpha = chunk("tRNS", {0, 128, 255});
  of_palette.insert(of_palette.end(), alpha.begin(), alpha.end());
  const Data all = expected(rgb_value), all_grey = expected(grey_value);
  const Data scaled = expected([&](int x, int y, int) { return 85 * two_bits(x, y, 0); });
  const Data looked_up = expected([&](int x, int y, int c) { return 20 * (3 * two_bits(x, y, 0) + c); });
  PngDecoder decoder;
  for (const std::uint8_t interlaced : {0, 1}) {
    EXPECT_EQ(decode(decoder, make_png({rgb, 8, interlaced, 3, rgb_value})), all);
    EXPECT_EQ(decode(decoder, make_png({rgb, 16, interlaced, 3, deep})), all);
    EXPECT_EQ(decode(decoder, make_png({rgba, 8, interlaced, 4, with_alpha})), all);
    EXPECT_EQ(decode(decoder, make_png({rgba, 16, interlaced, 4, deep})), all);
    EXPECT_EQ(decode(decoder, make_png({grey, 8, interlaced, 1, grey_value})), all_grey);
    EXPECT_EQ(decode(decoder, make_png({grey, 16, interlaced, 1, deep_grey})), all_grey);
    EXPECT_EQ(decode(decoder, make_png({grey, 2, interlaced, 1, two_bits})), scaled);
    EXPECT_EQ(decode(decoder, make_png({grey_alpha, 16, interlaced, 2, deep_grey})), all_grey);
    EXPECT_EQ(decode(decoder, make_png({palette, 2, interlaced, 1, two_bits}, of_palette)), looked_up);
    // A transparent colour.
    EXPECT_EQ(
        decode(decoder, make_png({rgb, 8, interlaced, 3, rgb_value}, chunk("tRNS", {0, 7, 0, 57, 0, 107}))),
        all);
    EXPECT_EQ(decode(decoder, make_png({grey, 8, interlaced, 1, grey_value}, chunk("tRNS", {0, 7}))),
              all_grey);
  }
}

TEST(PngDecoder, TakesExifBeforeAndBehindThePixels) {
  const Data exif{'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0};
  const Kind kind{rgb, 8, 0, 3, rgb_value};
  PngDecoder decoder;
  EXPECT_EQ(decode(decoder, make_png(kind, chunk("eXIf", exif))), expected(rgb_value));
  EXPECT_EQ(decoder.orientation(), 6);
  decode(decoder, make_png(kind));
  EXPECT_EQ(decoder.orientation(), 1);
  decode(decoder, make_png(kind, {}, chunk("eXIf", exif)));
  EXPECT_EQ(decoder.orientation(), 6);
}

TEST(PngDecoder, PrintsNothing) {
  const Kind kind{rgb, 8, 0, 3, rgb_value};
  Data odd = chunk("iCCP", {'x', 0, 0, 1, 2, 3});             // no profile
  const Data damaged_text = chunk("tEXt", {'a', 0, 'b'}, 1);  // its checksum is wrong
  const Data gamma = chunk("gAMA", {0, 0, 0, 1});             // out of range
  for (const Data& more : {damaged_text, gamma}) odd.insert(odd.end(), more.begin(), more.end());
  Data damaged = make_png(kind);
  damaged[45] ^= 0x55;  // in the compressed pixels
  PngDecoder decoder;
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const Data got = decode(decoder, make_png(kind, odd));
  std::string error;
  try {
    decode(decoder, damaged);
  } catch (const FileError& e) {
    error = e.what();
  }
  const Data next = decode(decoder, make_png(kind));
  EXPECT_EQ(testing::internal::GetCapturedStderr() + testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(got, expected(rgb_value));
  EXPECT_THAT(error, testing::StartsWith("a.png: the PNG image is damaged: IDAT: "));
  EXPECT_EQ(next, expected(rgb_value));
}

}  // namespace
}  // namespace lpsgd
