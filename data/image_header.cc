#include "data/image_header.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "data/decoded.h"
#include "data/tiff_tags.h"

namespace lpsgd {

namespace {

/// The file's bytes. Reading past the end is an error.
class Header {
 public:
  Header(std::span<const std::uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  bool begins(std::string_view magic, std::size_t at = 0) const {
    if (bytes_.size() < at + magic.size()) return false;
    for (std::size_t i = 0; i < magic.size(); ++i)
      if (bytes_[at + i] != static_cast<std::uint8_t>(magic[i])) return false;
    return true;
  }
  std::uint32_t little(std::size_t at, std::size_t count) const {
    need(at, count);
    std::uint32_t value = 0;
    while (count-- > 0) value = value << 8 | bytes_[at + count];
    return value;
  }
  std::uint32_t big(std::size_t at) const {
    need(at, 4);
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | bytes_[at + i];
    return value;
  }
  std::size_t size() const { return bytes_.size(); }
  std::span<const std::uint8_t> bytes() const { return bytes_; }
  void check_size(const ImageHeader& image) const { check_image_size(image.width, image.height, name_); }
  [[noreturn]] void fail(std::string_view what) const { throw FileError(fmt::format("{}: {}", name_, what)); }

 private:
  void need(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || count > bytes_.size() - at) fail("truncated inside the image's header");
  }

  std::span<const std::uint8_t> bytes_;
  const std::string& name_;
};

/// Chunks of length, type, data and checksum: all of them up to the last must be there.
ImageHeader png(const Header& file) {
  if (!file.begins("IHDR", 12)) file.fail("a PNG file without a header");
  const ImageHeader out{"PNG", file.big(16), file.big(20)};
  for (std::size_t at = 8; !file.begins("IEND", at + 4);) {
    const std::size_t length = 12 + std::size_t{file.size() - at >= 8 ? file.big(at) : 0};
    if (file.size() - at < 8 || length > file.size() - at) file.fail("truncated: the PNG file has no end");
    at += length;
  }
  return out;
}

/// The header of a file with rows of this many bytes: all of them must be there.
ImageHeader with_rows(const Header& file, const ImageHeader& header, std::int64_t at,
                      std::int64_t row_bytes) {
  file.check_size(header);
  const auto size = static_cast<std::int64_t>(file.size());
  const std::int64_t all = at + row_bytes * header.height;
  if (size < all)
    file.fail(fmt::format("truncated: {} bytes, the {} file's header says {}", size, header.format, all));
  return header;
}

ImageHeader bmp(const Header& file) {
  // Rows are whole words of 32 bits.
  const auto with_words = [&](const ImageHeader& header, std::size_t bits_at) {
    return with_rows(file, header, file.little(10, 4),
                     (header.width * file.little(bits_at, 2) + 31) / 32 * 4);
  };
  if (file.little(14, 4) == 12) return with_words({"BMP", file.little(18, 2), file.little(20, 2)}, 24);
  const auto width = static_cast<std::int32_t>(file.little(18, 4));
  const auto height = static_cast<std::int32_t>(file.little(22, 4));  // below 0: rows from the top
  constexpr std::uint32_t bit_fields = 3, alpha_bit_fields = 6;
  const std::uint32_t compression = file.little(30, 4);
  if (compression == bit_fields || compression == alpha_bit_fields) {
    // OpenCV does not read other masks right.
    const std::array masks{file.little(54, 4), file.little(58, 4), file.little(62, 4)};
    constexpr std::array<std::array<std::uint32_t, 3>, 3> known{
        {{0xff0000, 0xff00, 0xff}, {0x7c00, 0x3e0, 0x1f}, {0xf800, 0x7e0, 0x1f}}};
    if (std::ranges::count(known, masks) == 0)
      file.fail("a BMP file whose colours lie in unusual places (BITFIELDS)");
  }
  const ImageHeader header{"BMP", width, std::abs(std::int64_t{height})};
  const bool is_compressed = compression == 1 || compression == 2;
  return is_compressed ? header : with_words(header, 28);
}

ImageHeader webp(const Header& file) {
  if (std::size_t{file.little(4, 4)} + 8 > file.size()) file.fail("truncated: the WebP file is longer");
  if (file.begins("VP8X", 12)) {
    constexpr std::uint32_t animation = 2;
    if (file.little(20, 1) & animation) file.fail("an animated WebP file, which is not read");
    return {"WebP", file.little(24, 3) + 1, file.little(27, 3) + 1};
  }
  if (file.begins("VP8L", 12)) {
    const std::uint32_t bits = file.little(21, 4);
    return {"WebP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1};
  }
  if (file.begins("VP8 ", 12)) return {"WebP", file.little(26, 2) & 0x3FFF, file.little(28, 2) & 0x3FFF};
  file.fail("a WebP file without an image");
}

ImageHeader tiff(const Header& file) {
  const TiffTags tags(file.bytes());
  constexpr std::uint16_t width = 256, height = 257, tile_width = 322, tile_height = 323;
  const auto w = tags.find(width), h = tags.find(height);
  if (!w || !h) file.fail("a TIFF file without a size, or truncated");
  // Memory is taken for a whole tile, too.
  const auto tile_side = [&](std::uint16_t tag) -> std::int64_t {
    const auto side = tags.find(tag);
    if (!side && tags.has(tag)) file.fail("the size of the TIFF file's tiles is no number of a known type");
    return side.value_or(1);
  };
  const std::int64_t across = tile_side(tile_width), down = tile_side(tile_height);
  if (across > max_image_pixels || (across > 0 && down > max_image_pixels / across))
    file.fail("the TIFF file's tiles are too large");
  constexpr std::uint16_t extra_samples = 338, unassociated_alpha = 2;
  if (tags.find(extra_samples) == unassociated_alpha)
    file.fail("a TIFF file with transparency (unassociated alpha), whose colours would be changed by it");
  return {"TIFF", *w, *h};
}

/// "P6 640 480 ...", with comments from # to the end of a line.
ImageHeader portable(const Header& file) {
  std::int64_t numbers[2] = {};
  std::size_t at = 2;
  const auto byte = [&] { return static_cast<unsigned char>(file.little(at, 1)); };
  const auto number = [&] {
    while (std::isspace(byte()) || byte() == '#') {
      if (byte() == '#') {
        while (byte() != '\n') ++at;
      }
      ++at;
    }
    if (!std::isdigit(byte())) file.fail("nonsense in the header of a PBM, PGM or PPM file");
    std::int64_t out = 0;
    for (; std::isdigit(byte()) && out <= max_image_pixels; ++at) out = 10 * out + (byte() - '0');
    return out;
  };
  for (std::int64_t& side : numbers) side = number();
  const ImageHeader header{"PNM", numbers[0], numbers[1]};
  const auto with_bytes = [&](std::int64_t row_bytes) {  // behind one blank
    return with_rows(file, header, static_cast<std::int64_t>(at) + 1, row_bytes);
  };
  if (file.begins("P1")) return header;
  if (file.begins("P4")) return with_bytes((header.width + 7) / 8);
  const std::int64_t most = number();  // OpenCV does not scale by it
  if (most != 255 && most != 65535)
    file.fail(fmt::format("a PGM or PPM file whose largest value is {}; allowed: 255 and 65535", most));
  if (file.begins("P2") || file.begins("P3")) return header;
  return with_bytes(header.width * (file.begins("P6") ? 3 : 1) * (most == 255 ? 1 : 2));
}

ImageHeader any(const Header& file) {
  if (file.begins("\x89PNG\r\n\x1a\n")) return png(file);
  if (file.begins("BM")) return bmp(file);
  if (file.begins("RIFF") && file.begins("WEBP", 8)) return webp(file);
  if (file.begins(std::string_view("II*\0", 4)) || file.begins(std::string_view("MM\0*", 4)))
    return tiff(file);
  if (file.size() > 2 && file.bytes()[0] == 'P' && file.bytes()[1] >= '1' && file.bytes()[1] <= '6')
    return portable(file);
  file.fail("not an image of a known format (JPEG, PNG, BMP, WebP, TIFF, PBM, PGM, PPM)");
}

}  // namespace

ImageHeader read_image_header(std::span<const std::uint8_t> bytes, const std::string& name) {
  const Header file(bytes, name);
  if (bytes.empty()) file.fail("the file is empty");
  const ImageHeader header = any(file);
  file.check_size(header);
  return header;
}

void check_image_size(std::int64_t width, std::int64_t height, const std::string& name) {
  if (width < 1 || height < 1)
    throw FileError(fmt::format("{}: an image of {} x {} pixels", name, width, height));
  if (width > max_image_pixels / height)
    throw FileError(fmt::format("{}: {} x {} pixels are more than the limit of {} megapixels", name, width,
                                height, max_image_pixels / 1'000'000));
}

}  // namespace lpsgd
