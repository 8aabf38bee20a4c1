#include "data/image_packer.h"

#include <algorithm>
#include <opencv2/imgproc.hpp>

#include "core/error.h"
#include "data/image_decoder.h"
#include "data/jpeg_encoder.h"
#include "data/opencv.h"

namespace lpsgd {

namespace {

struct Size {
  std::int64_t height = 0, width = 0;
};

/// The size with a shorter side of `short_side`, its aspect kept to half a pixel; no larger than before.
Size shrunk(Size size, std::int64_t short_side) {
  const std::int64_t shorter = std::min(size.height, size.width);
  if (short_side == 0 || shorter <= short_side) return size;
  const auto scaled = [&](std::int64_t side) { return (2 * side * short_side + shorter) / (2 * shorter); };
  return {scaled(size.height), scaled(size.width)};
}

}  // namespace

struct ImagePacker::Impl {
  PackOptions options;
  ImageDecoder decoder{3};
  std::vector<std::uint8_t> pixels;  // before they are encoded

  /// Copies or shrinks the pixels to `out`, without gaps between rows.
  static ImageShape resize(const Pixels& from, const Size& size, std::vector<std::uint8_t>& out) {
    const ImageShape shape{size.height, size.width, from.channels};
    out.resize(static_cast<std::size_t>(shape.bytes()));
    const int type = CV_MAKETYPE(CV_8U, static_cast<int>(from.channels));
    // OpenCV has no view of bytes that are only read.
    const cv::Mat in(static_cast<int>(from.height), static_cast<int>(from.width), type,
                     const_cast<std::uint8_t*>(from.data), static_cast<std::size_t>(from.stride));
    cv::Mat target(static_cast<int>(size.height), static_cast<int>(size.width), type, out.data());
    if (in.size() == target.size())
      in.copyTo(target);
    else
      cv::resize(in, target, target.size(), 0, 0, cv::INTER_AREA);
    return shape;
  }
};

ImagePacker::ImagePacker(const PackOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  use_one_opencv_thread();
}

ImagePacker::~ImagePacker() = default;

StoredImage ImagePacker::pack(const StoredImage& image, const std::string& name,
                              std::vector<std::uint8_t>& out) {
  const PackOptions& options = impl_->options;
  if (image.shape) {
    const ImageShape& shape = *image.shape;
    if (image.bytes.size() != static_cast<std::size_t>(shape.bytes()) || shape.channels > 4)
      throw FileError(fmt::format("{}: {} bytes are not {} x {} x {} pixels", name, image.bytes.size(),
                                  shape.height, shape.width, shape.channels));
    const Size size = shrunk({shape.height, shape.width}, options.short_side);
    if (size.height == shape.height && size.width == shape.width) return image;
    const Pixels pixels{shape.height, shape.width, shape.channels, shape.width * shape.channels,
                        image.bytes.data()};
    const ImageShape packed = Impl::resize(pixels, size, out);
    return {out, packed};
  }
  if (!options.decoded && options.short_side == 0) return image;
  impl_->decoder.open(image.bytes, name);
  const Size full{impl_->decoder.height(), impl_->decoder.width()};
  const Size size = shrunk(full, options.short_side);
  if (!options.decoded && size.height == full.height && size.width == full.width) return image;
  const Pixels decoded = impl_->decoder.decode({0, 0, full.width, full.height}, size.height, size.width);
  if (options.decoded) {
    const ImageShape packed = Impl::resize(decoded, size, out);
    return {out, packed};
  }
  const ImageShape packed = Impl::resize(decoded, size, impl_->pixels);
  try {
    encode_jpeg({packed.height, packed.width, 3, 3 * packed.width, impl_->pixels.data()},
                static_cast<int>(options.quality), out);
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: {}", name, e.what()));
  }
  return {out, std::nullopt};
}

}  // namespace lpsgd
