// JPEG files of every kind, for tests, and a plain whole decode of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lpsgd {

using Bytes = std::vector<std::uint8_t>;

struct JpegKind {
  int width = 64, height = 48;
  enum class Colour : std::uint8_t { grey, ycc, rgb, cmyk, ycck } colour = Colour::ycc;
  int h = 2, v = 2;  // sampling factors of luminance; 2 x 2 is 4:2:0
  bool progressive = false, arithmetic = false;
  int restart_rows = 0;  // 0: no restart markers
  int quality = 85;
  int orientation = 0;  // EXIF's; 0: no EXIF
  bool big_endian = false;
  std::string name() const;
};

/// A picture with gradients, edges and noise; the same for the same size.
Bytes make_jpeg(const JpegKind& kind);

/// Pixels (height, width, channels), decoded by libjpeg in one piece at num/8 of the size.
struct WholeImage {
  int width = 0, height = 0, channels = 0;
  Bytes pixels;
};
/// `space`: libjpeg's J_COLOR_SPACE of the result.
WholeImage decode_whole(const Bytes& jpeg, int space, int num = 8);

/// The position of a marker 0xFF `code`, from `from` on.
std::size_t find_marker(const Bytes& jpeg, std::uint8_t code, std::size_t from = 0);

}  // namespace lpsgd
