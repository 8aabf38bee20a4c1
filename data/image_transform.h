// How an image becomes a sample of the network's size: the options of crops, sizes and colours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config.h"
#include "core/pixels.h"
#include "data/colour.h"
#include "data/crop_box.h"

namespace lpsgd {

/// The crop of a training sample, which is then resized to the network's input.
struct CropOptions {
  enum class Kind : std::uint8_t { none, random_resized, side_ratio };
  Kind kind = Kind::none;                            // none: evaluation's crop
  Interval area{0.08, 1}, aspect{3.0 / 4, 4.0 / 3};  // random_resized
  Interval ratio{0.875, 0.875};                      // side_ratio
};

/// The random changes of training. All off is `augment: none`.
struct AugmentOptions {
  /// Adds so many black pixels on each side, and crops the original size at a random position. Black is 0
  /// before scaling, as in torchvision's RandomCrop on images. For images that have the network's size.
  std::int64_t pad = 0;
  bool mirror = false;  // flip left-right with probability 1/2
  CropOptions crop = {};
  JitterOptions jitter = {};
  double pca = 0;  // deviation of PCA lighting; 0: off
  bool any() const {
    return pad > 0 || mirror || crop.kind != CropOptions::Kind::none || jitter.any() || pca > 0;
  }
};

/// The crop of evaluation, which is then resized to the network's input. One of the two is above 0; both 0 in
/// the configuration is `auto`, see resolve().
struct EvaluateOptions {
  std::int64_t resize = 0;  // the shorter side, before the centre of the network's size is cut out
  double side_ratio = 0;    // the centred crop's side over the image's shorter one
  bool automatic() const { return resize == 0 && side_ratio == 0; }
};

/// How pixels are found between pixels. A JPEG file shrinks by powers of 2 before, in decoding.
enum class Interpolation : std::uint8_t {
  linear,  // from the nearest 2 x 2 pixels
  area,    // where the image shrinks: the mean of all pixels that fall into one
};

struct ImageTransform {
  AugmentOptions augment = {};
  EvaluateOptions evaluate = {};
  Interpolation interpolation = Interpolation::linear;
};

/// The keys `augment`, `evaluate` and `interpolation` of section `data`.
void image_fields(config::Visitor& visitor, AugmentOptions& augment, EvaluateOptions& evaluate,
                  Interpolation& interpolation);

/// Whether images of this stored size need no resizing: it is the input's, and grayscale may become colour.
bool can_become(const ImageShape& stored, const ImageShape& input);

/// The options for a data set's images: of one stored shape, or of several sizes and files. `auto` becomes
/// the whole image if it has the network's height and width, and otherwise the centred crop of side ratio
/// 0.875. Throws ConfigError if the options do not fit the data set or the network's input `out`.
ImageTransform resolve(const ImageTransform& options, const std::optional<ImageShape>& fixed_shape,
                       const ImageShape& out);

}  // namespace lpsgd
