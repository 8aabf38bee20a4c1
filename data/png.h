// PNG files. libpng is called directly, because through OpenCV it prints a line for each oddity of a file,
// such as a wrong colour profile.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/decoded.h"

namespace lpsgd {

/// Decodes one file after another, with memory that is kept. One thread at a time. Errors are FileErrors that
/// begin with the name; the next file can be decoded after one.
///
/// Palettes become colours, 16 bits a value become the upper 8. Transparency, gamma and colour profiles are
/// ignored. Damage of the pixels, which have checksums, is an error.
class PngDecoder {
 public:
  PngDecoder();
  ~PngDecoder();
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  /// The whole picture as stored, in blue, green, red, as OpenCV has them. Images beyond max_image_pixels are
  /// refused before memory is taken for them.
  Pixels decode(std::span<const std::uint8_t> bytes, const std::string& name);
  /// EXIF's orientation of the last file, 1 to 8; 1: upright.
  int orientation() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
