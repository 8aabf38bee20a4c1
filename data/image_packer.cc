#include "data/image_packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <opencv2/imgproc.hpp>

#include "core/error.h"
#include "data/image_decoder.h"
#include "data/jpeg_encoder.h"

namespace lpsgd {

struct ImagePacker::Impl {
  explicit Impl(const PackOptions& o) : options(o) {}

  PackOptions options;
  ImageDecoder decoder{3};
  cv::Mat resized;

  /// Of the packed image.
  std::pair<std::int64_t, std::int64_t> size(std::int64_t height, std::int64_t width) const {
    const std::int64_t side = std::min(height, width);
    if (options.short_side == 0 || side <= options.short_side) return {height, width};
    const double scale = static_cast<double>(options.short_side) / static_cast<double>(side);
    const auto scaled = [&](std::int64_t x) {
      return static_cast<std::int64_t>(std::lround(static_cast<double>(x) * scale));
    };
    return {scaled(height), scaled(width)};
  }

  Pixels decode(const StoredImage& image, const std::string& name) {
    if (!image.shape) {
      decoder.open(image.bytes, name);
      const auto [height, width] = size(decoder.height(), decoder.width());
      return decoder.decode({0, 0, decoder.width(), decoder.height()}, height, width);
    }
    const ImageShape& shape = *image.shape;
    check_image_size(shape.width, shape.height, name);
    if (shape.channels != 1 && shape.channels != 3)
      throw FileError(fmt::format("{}: an image of {} channels cannot be packed", name, shape.channels));
    if (image.bytes.size() != static_cast<std::size_t>(shape.bytes()))
      throw FileError(fmt::format("{}: {} bytes are not {} x {} x {} pixels", name, image.bytes.size(),
                                  shape.height, shape.width, shape.channels));
    return {shape.height, shape.width, shape.channels, shape.width * shape.channels, image.bytes.data()};
  }

  Pixels resize(const Pixels& from, std::int64_t height, std::int64_t width) {
    if (from.height == height && from.width == width) return from;
    const cv::Mat in(static_cast<int>(from.height), static_cast<int>(from.width),
                     CV_MAKETYPE(CV_8U, static_cast<int>(from.channels)),
                     const_cast<std::uint8_t*>(from.data), static_cast<std::size_t>(from.stride));
    cv::resize(in, resized, {static_cast<int>(width), static_cast<int>(height)}, 0, 0, cv::INTER_AREA);
    return {height, width, from.channels, static_cast<std::ptrdiff_t>(resized.step[0]), resized.data};
  }
};

ImagePacker::ImagePacker(const PackOptions& options) : impl_(std::make_unique<Impl>(options)) {}

ImagePacker::~ImagePacker() = default;

StoredImage ImagePacker::pack(const StoredImage& image, const std::string& name,
                              std::vector<std::uint8_t>& out) {
  Impl& impl = *impl_;
  Pixels pixels = impl.decode(image, name);
  const bool file = !image.shape;
  const auto [height, width] =
      impl.size(file ? impl.decoder.height() : pixels.height, file ? impl.decoder.width() : pixels.width);
  pixels = impl.resize(pixels, height, width);
  if (!impl.options.decoded) {
    encode_jpeg(pixels, impl.options.quality, out);
    return {out, std::nullopt};
  }
  const std::int64_t row = pixels.width * pixels.channels;
  out.resize(static_cast<std::size_t>(row * pixels.height));
  for (std::int64_t y = 0; y < pixels.height; ++y)
    std::memcpy(out.data() + y * row, pixels.data + y * pixels.stride, static_cast<std::size_t>(row));
  return {out, ImageShape{pixels.height, pixels.width, pixels.channels}};
}

}  // namespace lpsgd
