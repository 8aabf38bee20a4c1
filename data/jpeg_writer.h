// JPEG files from pixels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/pixels.h"

namespace lpsgd {

/// A baseline JPEG file of (H, W, 1), luminance, or (H, W, 3), red, green and blue, by libjpeg-turbo, with
/// colour at half the resolution (4:2:0) and Huffman tables made for the image. `quality` is from 1 to 100.
/// Throws FileError "<name>: ..." if an image is too large for the format: 65,500 pixels a side.
std::vector<std::uint8_t> write_jpeg(std::span<const std::uint8_t> pixels, const ImageShape& shape,
                                     int quality, const std::string& name);

}  // namespace lpsgd
