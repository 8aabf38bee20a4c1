// Makes samples of the network's size from images as they are stored: files, or pixels of any size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/philox.h"
#include "core/pixels.h"
#include "data/dataset.h"
#include "data/image_transform.h"

namespace lpsgd {

/// Keeps the memory that it needs. One thread at a time.
///
/// The steps of training, and what each draws from `random`, in this order:
///   1. crop: `pad`, or neither pad nor crop: below(2 pad + 1) for the row and the same for the column of the
///      sample in the padded image; `random_resized`, `side_ratio`: see data/crop_box.h
///   2. mirror, if on: next(), mirrored if it is odd
///   3. colour jitter, if any of it is on: see draw_jitter()
///   4. PCA lighting, if on: see draw_lighting()
/// Evaluation draws nothing and has a crop of its own.
///
/// The crop is resized to the network's height and width, whatever its aspect. One channel becomes three by
/// repetition, three become one as luminance (ITU-R 601).
class ImageReader {
 public:
  /// `transform` is resolved (resolve()). ConfigError as there.
  ImageReader(const ImageTransform& transform, const ImageShape& out);
  ~ImageReader();
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;

  /// Decodes `image` if it is a file, turns it upright, crops, resizes and changes colours: writes the
  /// network's (H, W, C) to `out`, before padding and mirroring, which the returned crop asks for. `random`:
  /// the sample's draws in training, null in evaluation. FileError begins with `name`.
  PixelCrop read(const StoredImage& image, const std::string& name, PhiloxSequence* random,
                 std::uint8_t* out);

  /// Decodes a whole image, as its file is checked. Returns its shape, upright. FileError begins with `name`.
  ImageShape check(const StoredImage& image, const std::string& name);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
