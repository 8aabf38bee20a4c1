#include "data/colour.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <opencv2/imgproc.hpp>
#include <utility>

namespace lpsgd {

namespace {

using Table = std::array<std::uint8_t, 256>;

/// from + factor * (to - from), within 0..255, cut to an integer: Pillow's Image.blend.
std::uint8_t blend(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

void blend_with(int level, float factor, std::span<std::uint8_t> pixels) {
  Table table;
  for (int x = 0; x < 256; ++x) table[static_cast<std::size_t>(x)] = blend(level, x, factor);
  for (std::uint8_t& x : pixels) x = table[x];
}

/// Rounded to the nearest integer. Of pixels that are not red, green, blue: the mean of all their values.
int mean_luminance(std::int64_t channels, std::span<const std::uint8_t> pixels) {
  std::uint64_t sum = 0;
  if (channels == 3) {
    for (std::size_t i = 0; i < pixels.size(); i += 3) sum += luminance(&pixels[i]);
  } else {
    for (const std::uint8_t x : pixels) sum += x;
  }
  const std::size_t addends = channels == 3 ? pixels.size() / 3 : pixels.size();
  return static_cast<int>(std::lround(static_cast<double>(sum) / static_cast<double>(addends)));
}

void saturate(float factor, std::span<std::uint8_t> pixels) {
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    const int grey = luminance(&pixels[i]);
    for (std::size_t c = 0; c < 3; ++c) pixels[i + c] = blend(grey, pixels[i + c], factor);
  }
}

float factor_around_one(double x, PhiloxSequence& random) {
  const double min = std::max(0.0, 1 - x);
  return static_cast<float>(min + (1 + x - min) * static_cast<double>(random.uniform()));
}

/// Two normal numbers.
std::pair<double, double> normals(PhiloxSequence& random) {
  const double radius = std::sqrt(-2 * std::log(1 - static_cast<double>(random.uniform())));
  const double angle = 2 * std::numbers::pi * static_cast<double>(random.uniform());
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

Jitter draw_jitter(const JitterOptions& options, PhiloxSequence& random) {
  Jitter out;
  for (std::size_t left = out.order.size(); left > 1; --left)
    std::swap(out.order[left - 1], out.order[random.below(static_cast<std::uint32_t>(left))]);
  out.brightness = factor_around_one(options.brightness, random);
  out.contrast = factor_around_one(options.contrast, random);
  out.saturation = factor_around_one(options.saturation, random);
  out.hue = static_cast<float>(options.hue * (2 * static_cast<double>(random.uniform()) - 1));
  return out;
}

ColourShift draw_lighting(double std, PhiloxSequence& random) {
  // Of ImageNet's pixels / 255, columns by descending eigenvalue.
  constexpr double values[3] = {0.2175, 0.0188, 0.0045};
  constexpr double vectors[3][3] = {
      {-0.5675, 0.7192, 0.4009}, {-0.5808, -0.0045, -0.8140}, {-0.5836, -0.6948, 0.4203}};
  const auto [first, second] = normals(random);
  const double normal[3] = {first, second, normals(random).first};
  ColourShift out;
  for (std::size_t c = 0; c < out.size(); ++c) {
    double shift = 0;
    for (std::size_t i = 0; i < 3; ++i) shift += vectors[c][i] * values[i] * std * normal[i];
    out[c] = static_cast<int>(std::nearbyint(255 * shift));
  }
  return out;
}

struct ColourChanger::Memory {
  cv::Mat hsv;
};

ColourChanger::ColourChanger() : memory_(std::make_unique<Memory>()) {}

ColourChanger::~ColourChanger() = default;

void ColourChanger::turn_hue(float turn, std::span<std::uint8_t> pixels) {
  cv::Mat image(1, static_cast<int>(pixels.size() / 3), CV_8UC3, pixels.data());
  cv::cvtColor(image, memory_->hsv, cv::COLOR_RGB2HSV_FULL);  // hue: the circle is 256
  const auto steps = static_cast<std::uint8_t>(static_cast<int>(std::nearbyint(256 * turn)));
  std::uint8_t* hue = memory_->hsv.data;
  for (std::size_t i = 0; i < pixels.size(); i += 3) hue[i] = static_cast<std::uint8_t>(hue[i] + steps);
  cv::cvtColor(memory_->hsv, image, cv::COLOR_HSV2RGB_FULL);
}

void ColourChanger::apply(const Jitter& jitter, std::int64_t channels, std::span<std::uint8_t> pixels) {
  for (const int change : jitter.order) {
    if (change == 0 && jitter.brightness != 1) blend_with(0, jitter.brightness, pixels);
    if (change == 1 && jitter.contrast != 1)
      blend_with(mean_luminance(channels, pixels), jitter.contrast, pixels);
    if (channels != 3) continue;
    if (change == 2 && jitter.saturation != 1) saturate(jitter.saturation, pixels);
    if (change == 3 && jitter.hue != 0) turn_hue(jitter.hue, pixels);
  }
}

void ColourChanger::add(const ColourShift& shift, std::span<std::uint8_t> pixels) {
  for (std::size_t i = 0; i < pixels.size(); i += 3)
    for (std::size_t c = 0; c < 3; ++c)
      pixels[i + c] = static_cast<std::uint8_t>(std::clamp(pixels[i + c] + shift[c], 0, 255));
}

}  // namespace lpsgd
