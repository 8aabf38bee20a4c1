#include "data/image_reader.h"

#include <cstring>
#include <opencv2/imgproc.hpp>

#include "core/error.h"
#include "data/image_decoder.h"
#include "data/opencv.h"

namespace lpsgd {

namespace {

using Kind = CropOptions::Kind;

/// Files have one or three channels.
std::int64_t file_channels(std::int64_t channels) {
  return channels == 1 ? 1 : 3;
}

}  // namespace

struct ImageReader::Impl {
  ImageTransform transform;
  ImageShape shape;
  ImageDecoder decoder;
  ColourChanger colours;
  cv::Mat resized;  // where the channels differ

  Impl(const ImageTransform& options, const ImageShape& out)
      : transform(options), shape(out), decoder(file_channels(out.channels)) {
    use_one_opencv_thread();
  }

  /// The image's height and width. A file is opened.
  ImageShape open(const StoredImage& image, const std::string& name) {
    if (image.shape) {
      check_image_size(image.shape->width, image.shape->height, name);
      if (image.bytes.size() != static_cast<std::size_t>(image.shape->bytes()))
        throw FileError(fmt::format("{}: {} bytes are not {} x {} x {} pixels", name, image.bytes.size(),
                                    image.shape->height, image.shape->width, image.shape->channels));
      if (image.shape->channels != shape.channels && image.shape->channels * shape.channels != 3)
        throw FileError(fmt::format("{}: an image of {} channels cannot become {}", name,
                                    image.shape->channels, shape.channels));
      return *image.shape;
    }
    if (shape.channels != 1 && shape.channels != 3)
      throw FileError(fmt::format("{}: an image file cannot become {} channels", name, shape.channels));
    decoder.open(image.bytes, name);
    return {decoder.height(), decoder.width(), shape.channels};
  }

  Pixels pixels(const StoredImage& image, const Box& box, std::int64_t height, std::int64_t width) {
    if (!image.shape) return decoder.decode(box, height, width);
    const std::int64_t channels = image.shape->channels, stride = image.shape->width * channels;
    return {box.height, box.width, channels, stride,
            image.bytes.data() + box.top * stride + box.left * channels};
  }

  Box crop(const ImageShape& image, PhiloxSequence* random) const {
    const CropOptions& crop = transform.augment.crop;
    const std::int64_t w = image.width, h = image.height;
    if (random && crop.kind == Kind::random_resized)
      return random_resized_box(w, h, crop.area, crop.aspect, *random);
    if (random && crop.kind == Kind::side_ratio)
      return random_side_ratio_box(w, h, crop.ratio, shape.width, shape.height, *random);
    if (random && transform.augment.pad > 0) return {0, 0, w, h};
    const EvaluateOptions& evaluate = transform.evaluate;
    if (evaluate.resize > 0) return resize_box(w, h, evaluate.resize, shape.width, shape.height);
    return side_ratio_box(w, h, evaluate.side_ratio, shape.width, shape.height);
  }

  PixelCrop place(PhiloxSequence& random) const {
    PixelCrop out;
    const AugmentOptions& augment = transform.augment;
    if (augment.crop.kind == Kind::none && (augment.pad > 0 || augment.mirror)) {
      const auto pad = static_cast<std::int32_t>(augment.pad);
      const auto offsets = static_cast<std::uint32_t>(2 * pad + 1);
      out.down = static_cast<std::int32_t>(random.below(offsets)) - pad;
      out.across = static_cast<std::int32_t>(random.below(offsets)) - pad;
    }
    out.mirrored = augment.mirror && (random.next() & 1u) != 0;
    return out;
  }

  static void copy_rows(const Pixels& from, std::uint8_t* out) {
    const auto row = static_cast<std::size_t>(from.width * from.channels);
    for (std::int64_t y = 0; y < from.height; ++y, out += row)
      std::memcpy(out, from.data + y * from.stride, row);
  }

  void resize(const Pixels& from, std::uint8_t* out) {
    if (from.height == shape.height && from.width == shape.width && from.channels == shape.channels)
      return copy_rows(from, out);  // of any number of channels
    const cv::Mat in =
        opencv_view(from.height, from.width, from.channels, from.data, static_cast<std::size_t>(from.stride));
    cv::Mat target(static_cast<int>(shape.height), static_cast<int>(shape.width), opencv_type(shape.channels),
                   out);
    const bool same_channels = from.channels == shape.channels;
    cv::Mat& scaled = same_channels ? target : resized;
    const bool shrinks = from.height > shape.height || from.width > shape.width;
    const bool area = shrinks && transform.interpolation == Interpolation::area;
    cv::resize(in, scaled, target.size(), 0, 0, area ? cv::INTER_AREA : cv::INTER_LINEAR);
    if (!same_channels)
      cv::cvtColor(scaled, target, from.channels == 3 ? cv::COLOR_RGB2GRAY : cv::COLOR_GRAY2RGB);
  }

  void change_colours(PhiloxSequence& random, std::uint8_t* out) {
    const AugmentOptions& augment = transform.augment;
    const std::span pixels(out, static_cast<std::size_t>(shape.bytes()));
    if (augment.jitter.any()) colours.apply(draw_jitter(augment.jitter, random), shape.channels, pixels);
    if (augment.pca > 0) ColourChanger::add(draw_lighting(augment.pca, random), pixels);
  }
};

ImageReader::ImageReader(const ImageTransform& transform, const ImageShape& out)
    : impl_(std::make_unique<Impl>(transform, out)) {
  const EvaluateOptions& evaluate = transform.evaluate;
  require((evaluate.resize > 0) != (evaluate.side_ratio > 0), "an image reader needs resolved options");
}

ImageReader::~ImageReader() = default;

PixelCrop ImageReader::read(const StoredImage& image, const std::string& name, PhiloxSequence* random,
                            std::uint8_t* out) {
  Impl& impl = *impl_;
  const Box box = impl.crop(impl.open(image, name), random);
  const PixelCrop place = random ? impl.place(*random) : PixelCrop{};
  impl.resize(impl.pixels(image, box, impl.shape.height, impl.shape.width), out);
  if (random) impl.change_colours(*random, out);
  return place;
}

ImageShape ImageReader::check(const StoredImage& image, const std::string& name) {
  const ImageShape shape = impl_->open(image, name);
  impl_->pixels(image, {0, 0, shape.width, shape.height}, shape.height, shape.width);
  return shape;
}

}  // namespace lpsgd
