// Which part of an image becomes a sample: boxes in pixels, as the crops of training and evaluation draw
// them.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace lpsgd {

/// A rectangle of an image, in pixels.
struct Box {
  std::int64_t left = 0, top = 0, width = 0, height = 0;
  bool operator==(const Box&) const = default;
};

/// The numbers from min to max.
struct Interval {
  double min = 0, max = 0;
  bool operator==(const Interval&) const = default;
};

/// A crop of random area and aspect (Szegedy et al., "Going deeper with convolutions", CVPR 2015;
/// torchvision's RandomResizedCrop). Up to ten times it draws an area, uniform in `area` of the image's, and
/// an aspect width/height whose logarithm is uniform in the logarithms of `aspect`. The first that fits lies
/// at a uniform position. If none fits, it is the largest centred box with an aspect in the range.
///
/// Draws: per try uniform() for the area and uniform() for the aspect, then below(rows + 1) for the top and
/// below(columns + 1) for the left edge.
Box random_resized_box(std::int64_t width, std::int64_t height, const Interval& area, const Interval& aspect,
                       PhiloxSequence& random);

/// The largest centred box with the aspect of out_width x out_height, whose sides are then multiplied by
/// `ratio`. For a square output the side is `ratio` times the image's shorter one (CNTK's side ratio).
Box side_ratio_box(std::int64_t width, std::int64_t height, double ratio, std::int64_t out_width,
                   std::int64_t out_height);

/// A box of that size at a uniform position, with a ratio that is uniform in `ratio`.
/// Draws: uniform() for the ratio, below(rows + 1) for the top, below(columns + 1) for the left edge.
Box random_side_ratio_box(std::int64_t width, std::int64_t height, const Interval& ratio,
                          std::int64_t out_width, std::int64_t out_height, PhiloxSequence& random);

/// The part of the image that is the centre of out_width x out_height pixels once its shorter side is resized
/// to `side` (torchvision's Resize and CenterCrop), rounded to whole pixels. `side` is at least the output's.
Box resize_box(std::int64_t width, std::int64_t height, std::int64_t side, std::int64_t out_width,
               std::int64_t out_height);

/// The box of the image as it is stored that shows `box` of the upright one. `orientation` is EXIF's, 1 to 8;
/// width and height are those of the stored image.
Box stored_box(const Box& box, int orientation, std::int64_t width, std::int64_t height);

/// How EXIF's orientation turns a stored image upright: mirrored left to right, and top to bottom, then
/// transposed.
struct Orientation {
  explicit Orientation(int exif)
      : flip_x(exif == 2 || exif == 3 || exif == 7 || exif == 8),
        flip_y(exif == 3 || exif == 4 || exif == 6 || exif == 7),
        transposed(exif >= 5) {}
  bool flip_x, flip_y, transposed;
};

}  // namespace lpsgd
