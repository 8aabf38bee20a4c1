#include "data/crop_box.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lpsgd {

namespace {

/// To the nearest integer, halves to the even one, as Python's round().
std::int64_t rounded(double x) {
  return static_cast<std::int64_t>(std::nearbyint(x));
}

double uniform(const Interval& in, PhiloxSequence& random) {
  return in.min + (in.max - in.min) * static_cast<double>(random.uniform());
}

/// A box of this size at a random position.
Box placed(std::int64_t width, std::int64_t height, std::int64_t box_width, std::int64_t box_height,
           PhiloxSequence& random) {
  Box box{0, 0, box_width, box_height};
  box.top = random.below(static_cast<std::uint32_t>(height - box_height + 1));
  box.left = random.below(static_cast<std::uint32_t>(width - box_width + 1));
  return box;
}

Box centred(std::int64_t width, std::int64_t height, std::int64_t box_width, std::int64_t box_height) {
  return {(width - box_width) / 2, (height - box_height) / 2, box_width, box_height};
}

}  // namespace

Box random_resized_box(std::int64_t width, std::int64_t height, const Interval& area, const Interval& aspect,
                       PhiloxSequence& random) {
  const double pixels = static_cast<double>(width) * static_cast<double>(height);
  for (int i = 0; i < 10; ++i) {
    const double target = pixels * uniform(area, random);
    const double shape = std::exp(uniform({std::log(aspect.min), std::log(aspect.max)}, random));
    const std::int64_t w = rounded(std::sqrt(target * shape)), h = rounded(std::sqrt(target / shape));
    if (w > 0 && w <= width && h > 0 && h <= height) return placed(width, height, w, h, random);
  }
  const double own = static_cast<double>(width) / static_cast<double>(height);
  std::int64_t w = width, h = height;
  if (own < aspect.min) h = std::clamp<std::int64_t>(rounded(static_cast<double>(w) / aspect.min), 1, height);
  if (own > aspect.max) w = std::clamp<std::int64_t>(rounded(static_cast<double>(h) * aspect.max), 1, width);
  return centred(width, height, w, h);
}

Box side_ratio_box(std::int64_t width, std::int64_t height, double ratio, std::int64_t out_width,
                   std::int64_t out_height) {
  // The largest box of the output's aspect is as wide or as high as the image.
  const double scale = ratio * std::min(static_cast<double>(width) / static_cast<double>(out_width),
                                        static_cast<double>(height) / static_cast<double>(out_height));
  const std::int64_t w = rounded(scale * static_cast<double>(out_width));
  const std::int64_t h = rounded(scale * static_cast<double>(out_height));
  return centred(width, height, std::clamp<std::int64_t>(w, 1, width),
                 std::clamp<std::int64_t>(h, 1, height));
}

Box random_side_ratio_box(std::int64_t width, std::int64_t height, const Interval& ratio,
                          std::int64_t out_width, std::int64_t out_height, PhiloxSequence& random) {
  const Box box = side_ratio_box(width, height, uniform(ratio, random), out_width, out_height);
  return placed(width, height, box.width, box.height, random);
}

Box resize_box(std::int64_t width, std::int64_t height, std::int64_t side, std::int64_t out_width,
               std::int64_t out_height) {
  const double shrink = static_cast<double>(std::min(width, height)) / static_cast<double>(side);
  const auto along = [&](std::int64_t size, std::int64_t out) {
    const double part = std::min(shrink * static_cast<double>(out), static_cast<double>(size));
    const double from = (static_cast<double>(size) - part) / 2;
    const std::int64_t first = std::min(rounded(from), size - 1);
    return std::pair(first, std::clamp<std::int64_t>(rounded(from + part), first + 1, size));
  };
  const auto [left, right] = along(width, out_width);
  const auto [top, bottom] = along(height, out_height);
  return {left, top, right - left, bottom - top};
}

Box stored_box(const Box& box, int orientation, std::int64_t width, std::int64_t height) {
  const Orientation turn(orientation);
  Box out = box;
  if (turn.transposed) out = {box.top, box.left, box.height, box.width};
  if (turn.flip_x) out.left = width - out.left - out.width;
  if (turn.flip_y) out.top = height - out.top - out.height;
  return out;
}

}  // namespace lpsgd
