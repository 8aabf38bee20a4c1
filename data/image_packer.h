// Makes smaller or decoded images from files, as shards hold them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

struct PackOptions {
  /// Larger images shrink until their shorter side has so many pixels; 0: none does. A file that is small
  /// enough stays as it is.
  std::int64_t short_side = 0;
  std::int64_t quality = 90;  // of the JPEG files that are written, 1 to 100
  bool decoded = false;       // pixels in place of files: (H, W, 1) of a grayscale JPEG, else (H, W, 3)
};

/// Keeps the memory that it needs. One thread at a time.
class ImagePacker {
 public:
  explicit ImagePacker(const PackOptions& options);
  ~ImagePacker();
  ImagePacker(const ImagePacker&) = delete;
  ImagePacker& operator=(const ImagePacker&) = delete;

  /// The image, upright if it was decoded: its own bytes, or bytes that are written to `out`. Pixels stay
  /// pixels. Shrinking takes the mean of the pixels that fall into one (cv::INTER_AREA). A grayscale JPEG
  /// keeps its one channel. FileError, which begins with `name`, if a file cannot be decoded, even if it
  /// stays as it is.
  StoredImage pack(const StoredImage& image, const std::string& name, std::vector<std::uint8_t>& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
