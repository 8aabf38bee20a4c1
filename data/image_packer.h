// Makes the images of shards: smaller, and as JPEG or as pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

struct PackOptions {
  std::int64_t short_side = 0;  // longer shorter sides are resized to this; 0: none is
  int quality = 90;             // of JPEG
  bool decoded = false;         // pixels instead of JPEG
};

/// Keeps the memory that it needs. One thread at a time.
class ImagePacker {
 public:
  explicit ImagePacker(const PackOptions& options);
  ~ImagePacker();
  ImagePacker(const ImagePacker&) = delete;
  ImagePacker& operator=(const ImagePacker&) = delete;

  /// Decodes a file or takes pixels of 1 or 3 channels, upright, resizes by the mean over areas, and writes
  /// JPEG or pixels (red, green, blue, or as given) to `out`, where the returned bytes lie. A FileError
  /// begins with `name`.
  StoredImage pack(const StoredImage& image, const std::string& name, std::vector<std::uint8_t>& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
