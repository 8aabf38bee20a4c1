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
  ImageDecoder colour{3}, grey{1};
  std::vector<std::uint8_t> pixels;  // before they are encoded

  /// Opened, with as many channels as the file has.
  ImageDecoder& open(std::span<const std::uint8_t> bytes, const std::string& name) {
    colour.open(bytes, name);
    if (!colour.is_grey_jpeg()) return colour;
    grey.open(bytes, name);
    return grey;
  }

  /// Copies or shrinks the pixels to `out`, without gaps between rows.
  static ImageShape resize(const Pixels& from, const Size& size, std::vector<std::uint8_t>& out) {
    const ImageShape shape{size.height, size.width, from.channels};
    out.resize(static_cast<std::size_t>(shape.bytes()));
    const cv::Mat in =
        opencv_view(from.height, from.width, from.channels, from.data, static_cast<std::size_t>(from.stride));
    cv::Mat target(static_cast<int>(size.height), static_cast<int>(size.width), in.type(), out.data());
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
  ImageDecoder& decoder = impl_->open(image.bytes, name);
  const Size full{decoder.height(), decoder.width()};
  const Size size = shrunk(full, options.short_side);
  // Also a file that stays as it is is decoded, to find out whether it can be.
  const Pixels decoded = decoder.decode({0, 0, full.width, full.height}, size.height, size.width);
  if (!options.decoded && size.height == full.height && size.width == full.width) return image;
  if (options.decoded) {
    const ImageShape packed = Impl::resize(decoded, size, out);
    return {out, packed};
  }
  const ImageShape packed = Impl::resize(decoded, size, impl_->pixels);
  try {
    encode_jpeg(
        {packed.height, packed.width, packed.channels, packed.channels * packed.width, impl_->pixels.data()},
        static_cast<int>(options.quality), out);
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: {}", name, e.what()));
  }
  return {out, std::nullopt};
}

}  // namespace lpsgd
