// What the decoders of image files share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lpsgd {

/// Larger images are refused, from their headers, before memory is taken for them.
inline constexpr std::int64_t max_image_pixels = 100'000'000;

/// Throws FileError "<name>: ..." if an image of this size is empty or larger than max_image_pixels.
void check_image_size(std::int64_t width, std::int64_t height, const std::string& name);

/// Pixels (height, width, channels), uint8, rows `stride` bytes apart. Three channels are red, green, blue,
/// if the decoder does not say otherwise. They lie in the decoder, until its next call.
struct Pixels {
  std::int64_t height = 0, width = 0, channels = 0;
  std::ptrdiff_t stride = 0;
  const std::uint8_t* data = nullptr;
};

}  // namespace lpsgd
