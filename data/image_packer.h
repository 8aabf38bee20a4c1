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
  bool decoded = false;       // pixels (H, W, 3) in place of files
};

/// Keeps the memory that it needs. One thread at a time.
class ImagePacker {
 public:
  explicit ImagePacker(const PackOptions& options);
  ~ImagePacker();
  ImagePacker(const ImagePacker&) = delete;
  ImagePacker& operator=(const ImagePacker&) = delete;

  /// The image, upright if it was decoded: its own bytes, or bytes that are written to `out`. Pixels stay
  /// pixels. Shrinking takes the mean of the pixels that fall into one (cv::INTER_AREA). FileError begins
  /// with `name`.
  StoredImage pack(const StoredImage& image, const std::string& name, std::vector<std::uint8_t>& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
