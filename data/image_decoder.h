// Image files of every format: JPEG by libjpeg-turbo, PNG by libpng, the others by OpenCV.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/crop_box.h"
#include "data/decoded.h"

namespace lpsgd {

/// Decodes one file after another, with memory that is kept. One thread at a time. The format is found from
/// the content, never from a name. Sizes and boxes are those of the upright image: EXIF's orientation is
/// applied. Errors are FileErrors that begin with the name given to open(); the next file can be opened after
/// one.
///
/// JPEG: see JpegDecoder. PNG: see PngDecoder. Others, decoded whole as PNG is: BMP, WebP, TIFF, PBM, PGM,
/// PPM. Palettes become colours, 16 bits a value become 8, and alpha is dropped. Of a file with several
/// images the first is taken.
class ImageDecoder {
 public:
  /// `channels`: 3 for red, green, blue; 1 for luminance.
  explicit ImageDecoder(std::int64_t channels);
  ~ImageDecoder();
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  /// Reads the header, or the whole image if it is no JPEG. `bytes` stay valid until the image is decoded.
  void open(std::span<const std::uint8_t> bytes, const std::string& name);
  std::int64_t width() const;
  std::int64_t height() const;
  bool is_grey_jpeg() const;  // a JPEG with luminance alone

  /// The pixels of `box`, once per open(). Those of a JPEG may be at a smaller scale that still has at least
  /// out_height x out_width. With the box's own size as `out` they are the full decode's.
  Pixels decode(const Box& box, std::int64_t out_height, std::int64_t out_width);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
