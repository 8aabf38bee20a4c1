// JPEG files, as much of them as a crop needs: libjpeg-turbo decodes a part of the picture, and at a half, a
// quarter or an eighth of its size if that is still at least as large as what is wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/crop_box.h"
#include "data/decoded.h"

namespace lpsgd {

/// Whether the bytes begin as a JPEG file does.
bool is_jpeg(std::span<const std::uint8_t> bytes);

/// Decodes one file after another, with memory that is kept. One thread at a time. Errors are FileErrors that
/// begin with the name given to open(); the next file can be opened after one.
///
/// It reads baseline, extended and progressive files with Huffman or arithmetic coding and 8 bits a sample;
/// grayscale, YCbCr, RGB, CMYK and YCCK. CMYK is taken as Adobe's programs write it, inverted. Colour
/// profiles are ignored.
///
/// Files with missing or damaged data are errors: a file without an end marker always, damage inside it if it
/// lies in the crop or above. Oddities that lose no data, such as extra bytes before a marker, are accepted.
/// A progressive file with more than `max_scans` scans is refused: it would cost time without bound; and so
/// is one whose coefficients need more than 512 MiB.
class JpegDecoder {
 public:
  static constexpr int max_scans = 100;

  /// `channels`: 3 for red, green, blue; 1 for luminance.
  explicit JpegDecoder(std::int64_t channels);
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// Reads the header. `bytes` stay valid until the picture is decoded.
  void open(std::span<const std::uint8_t> bytes, const std::string& name);
  /// The size as stored, before EXIF's orientation.
  std::int64_t width() const;
  std::int64_t height() const;
  /// 1: luminance alone.
  int components() const;
  /// EXIF's orientation, 1 to 8; 1: upright.
  int orientation() const;

  /// Decodes `box`, which lies in the picture as stored, once per open(). The scale is num/8 of the size,
  /// with the smallest num of 1, 2, 4, 8 that leaves at least out_height x out_width; the box's edges are
  /// then rounded to whole pixels of that scale. With num = 8 the pixels are those of a decode of the whole
  /// picture.
  Pixels decode(const Box& box, std::int64_t out_height, std::int64_t out_width);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
