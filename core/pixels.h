// Images as bytes: what the loader writes and the network reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lpsgd {

/// Pixels (height, width, channels) of 0..255.
struct ImageShape {
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t bytes() const { return height * width * channels; }
  bool operator==(const ImageShape&) const = default;
};

/// Which part of a stored image a sample is: pixel (y, x) of the sample is pixel (y + down, x + across) of
/// the image, and 0 outside it. If mirrored, x counts from the sample's right.
struct PixelCrop {
  std::int32_t down = 0, across = 0, mirrored = 0;
  bool operator==(const PixelCrop&) const = default;
};

/// How the pixels of each channel are scaled: (x/255 - mean)/std.
struct Normalization {
  std::vector<double> mean, std;
};

/// (channels, 256): the scaled value of every byte, computed in float32 as in PyTorch: x/255, minus mean,
/// over std, each rounded once.
inline std::vector<std::array<float, 256>> scaled_bytes(const Normalization& norm) {
  std::vector<std::array<float, 256>> table(norm.mean.size());
  for (std::size_t c = 0; c < table.size(); ++c)
    for (std::size_t x = 0; x < 256; ++x)
      table[c][x] = (static_cast<float>(x) / 255.0f - static_cast<float>(norm.mean[c])) /
                    static_cast<float>(norm.std[c]);
  return table;
}

}  // namespace lpsgd
