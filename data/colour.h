// Random changes of colour, on the bytes of an image.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "core/philox.h"

namespace lpsgd {

/// The luminance (ITU-R 601) of red, green and blue, as Pillow rounds it.
inline std::uint8_t luminance(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

/// Colour jitter as torchvision's ColorJitter: factors uniform in [max(0, 1 - x), 1 + x] for brightness,
/// contrast and saturation; hue is turned by up to `hue` of the circle either way. 0: that change is off.
struct JitterOptions {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

/// The jitter of one sample.
struct Jitter {
  /// In the order drawn: 0 brightness, 1 contrast, 2 saturation, 3 hue.
  std::array<int, 4> order{0, 1, 2, 3};
  float brightness = 1, contrast = 1, saturation = 1, hue = 0;
};

/// Draws: the order by Fisher and Yates from the end, below(4), below(3), below(2); then uniform() for each
/// of brightness, contrast, saturation and hue, also for those that are off.
Jitter draw_jitter(const JitterOptions& options, PhiloxSequence& random);

/// A change of each channel: levels of 255.
using ColourShift = std::array<int, 3>;

/// PCA lighting (Krizhevsky, Sutskever, Hinton: "ImageNet classification with deep convolutional neural
/// networks", 2012): sum of eigenvector_i * eigenvalue_i * a_i, a_i normal with deviation `std`, over
/// ImageNet's three principal components of colour; rounded to whole levels. Draws: three normals by Box and
/// Muller, from two pairs of uniform().
ColourShift draw_lighting(double std, PhiloxSequence& random);

/// Applies both, and keeps the memory that it needs. One thread at a time.
class ColourChanger {
 public:
  ColourChanger();
  ~ColourChanger();
  ColourChanger(const ColourChanger&) = delete;
  ColourChanger& operator=(const ColourChanger&) = delete;

  /// Changes pixels (count, channels). Brightness, contrast and saturation blend with black, with the mean
  /// luminance and with each pixel's luminance, with Pillow's rounding. One channel has neither saturation
  /// nor hue.
  void apply(const Jitter& jitter, std::int64_t channels, std::span<std::uint8_t> pixels);
  /// Adds to pixels (count, 3), within 0..255.
  static void add(const ColourShift& shift, std::span<std::uint8_t> pixels);

 private:
  void turn_hue(float turn, std::span<std::uint8_t> pixels);

  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace lpsgd
