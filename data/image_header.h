// The headers of image files other than JPEG: what format it is and how large the image.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lpsgd {

struct ImageHeader {
  const char* format = "";
  std::int64_t width = 0, height = 0;  // as stored
};

/// Recognises PNG, BMP, WebP, TIFF and PBM/PGM/PPM by their content. Throws FileError "<name>: ..." if the
/// bytes begin as none of them, if the header is cut off or nonsense, or if the file is shorter than it
/// says (PNG, WebP, and BMP, PBM, PGM and PPM whose rows are neither compressed nor text).
ImageHeader read_image_header(std::span<const std::uint8_t> bytes, const std::string& name);

}  // namespace lpsgd
