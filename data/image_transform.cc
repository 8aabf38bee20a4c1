#include "data/image_transform.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/config_shape.h"
#include "core/error.h"
#include "data/opencv.h"

namespace lpsgd {

namespace {

using Kind = CropOptions::Kind;

constexpr double default_side_ratio = 0.875;  // 224 of 256, as is usual for ImageNet
const config::Range share{.min = 0, .max = 1, .min_open = true};
const config::Range shape_range{.min = 0.01, .max = 100};

/// [min, max], or one number for both.
void interval_field(config::Visitor& v, const char* key, Interval& interval, const char* help,
                    const config::Range& range) {
  v.shape([&] {
    return config::Shape::choice(
        {config::Shape::list(config::Shape::number(range)), config::Shape::number(range)});
  });
  v.custom(
      key, "[min, max], or a number", help,
      [&](const config::Value& value, const std::string& path) {
        if (value.is_sequence()) {
          if (value.items.size() != 2) config::fail(value.origin, path, "expected [min, max]");
          interval = {config::to_number(value.items[0], path, range),
                      config::to_number(value.items[1], path, range)};
        } else {
          interval.min = interval.max = config::to_number(value, path, range);
        }
        if (interval.min > interval.max)
          config::fail(value.origin, path, "the first number is the larger one");
      },
      [&] {
        config::Value list = config::Value::sequence();
        for (const double x : {interval.min, interval.max})
          list.items.push_back(config::Value::plain(config::number_text(x)));
        return list;
      });
}

void crop_fields(config::Visitor& v, CropOptions& crop) {
  v.required();
  v.choice("kind", crop.kind, {{"random_resized", Kind::random_resized}, {"side_ratio", Kind::side_ratio}},
           "a crop of random area and aspect, or one whose side is a share of the image's shorter side");
  if (crop.kind == Kind::random_resized) {
    interval_field(v, "area", crop.area, "the crop's area over the image's", share);
    interval_field(v, "aspect", crop.aspect, "the crop's width over its height", shape_range);
  } else {
    v.required();
    interval_field(v, "ratio", crop.ratio, "the crop's side over the image's shorter one", share);
  }
}

config::Shape crop_shape() {
  std::vector<config::Shape> shapes{config::Shape::word({"none"})};
  for (const auto& [kind, name] :
       {std::pair{Kind::random_resized, "random_resized"}, std::pair{Kind::side_ratio, "side_ratio"}}) {
    CropOptions crop{.kind = kind};
    config::Shape shape = config::Shape::map([&](config::Visitor& v) { crop_fields(v, crop); });
    shape.title = fmt::format("kind: {}", name);
    shape.fields[0].shape.words = {name};
    shapes.push_back(std::move(shape));
  }
  return config::Shape::choice(std::move(shapes));
}

bool is_word(const config::Value& value, const char* word) {
  return value.is_scalar() && value.scalar == word;
}

void crop_field(config::Visitor& v, CropOptions& crop) {
  v.shape(crop_shape);
  v.custom(
      "crop", "`none`, {kind: random_resized, area, aspect} or {kind: side_ratio, ratio}",
      "the part of the image that is resized to the network's input; `none`: as in evaluation",
      [&](const config::Value& value, const std::string& path) {
        crop = {};
        if (is_word(value, "none")) return;
        crop.kind = Kind::random_resized;
        config::Reader reader(value, path);
        crop_fields(reader, crop);
        reader.finish();
      },
      [&] {
        if (crop.kind == Kind::none) return config::Value::plain("none");
        config::Writer writer;
        crop_fields(writer, crop);
        return writer.take();
      });
}

void augment_fields(config::Visitor& v, AugmentOptions& augment) {
  v.field("pad", augment.pad, "adds this many black pixels on each side, then crops at a random position",
          {.min = 0, .max = 1024});
  v.field("mirror", augment.mirror, "mirrors each image left to right with probability 1/2");
  crop_field(v, augment.crop);
  v.section("jitter", "random changes of colour, in a random order", [&](config::Visitor& inner) {
    JitterOptions& jitter = augment.jitter;
    const config::Range range{.min = 0, .max = 10};
    inner.field("brightness", jitter.brightness, "x: pixels times a factor from 1 - x to 1 + x", range);
    inner.field("contrast", jitter.contrast,
                "x: differences from the mean luminance times a factor from 1 - x to 1 + x", range);
    inner.field("saturation", jitter.saturation,
                "x: differences from the pixel's luminance times a factor from 1 - x to 1 + x", range);
    inner.field("hue", jitter.hue, "the hue turns by up to this part of the colour circle, either way",
                {.min = 0, .max = 0.5});
  });
  v.field("pca", augment.pca,
          "the deviation of PCA lighting, which changes colours along ImageNet's principal components",
          {.min = 0, .max = 10});
}

void parse_augment(const config::Value& value, const std::string& path, AugmentOptions& augment) {
  augment = {};
  if (is_word(value, "none")) return;
  if (!value.is_map())
    config::fail(value.origin, path, "must be `none` or a map of pad, mirror, crop, jitter and pca");
  config::Reader reader(value, path);
  augment_fields(reader, augment);
  reader.finish();
  if (augment.pad > 0 && augment.crop.kind != Kind::none)
    config::fail(value.find("pad")->origin, path + ".pad",
                 "is for images that are not cropped: remove pad or crop");
}

void resize_field(config::Visitor& v, EvaluateOptions& evaluate) {
  v.field("resize", evaluate.resize, "resizes the shorter side to this before the centre is cut out",
          {.min = 1, .max = 65536});
}

void side_ratio_field(config::Visitor& v, EvaluateOptions& evaluate) {
  v.field("side_ratio", evaluate.side_ratio, "the centred crop's side over the image's shorter one", share);
}

void parse_evaluate(const config::Value& value, const std::string& path, EvaluateOptions& evaluate) {
  evaluate = {};
  if (is_word(value, "auto")) return;
  const auto refuse = [&] {
    config::fail(value.origin, path, "must be `auto`, {resize: pixels} or {side_ratio: share}");
  };
  if (!value.is_map() || value.entries.size() != 1) refuse();
  config::Reader reader(value, path);
  resize_field(reader, evaluate);
  side_ratio_field(reader, evaluate);
  reader.finish();
}

config::Shape evaluate_shape() {
  const auto one = [](const auto& declare) {
    config::Shape map = config::Shape::map(declare);
    map.fields[0].is_required = true;
    return map;
  };
  EvaluateOptions none;
  return config::Shape::choice({config::Shape::word({"auto"}),
                                one([&](config::Visitor& v) { resize_field(v, none); }),
                                one([&](config::Visitor& v) { side_ratio_field(v, none); })});
}

config::Value write_evaluate(const EvaluateOptions& evaluate) {
  if (evaluate.automatic()) return config::Value::plain("auto");
  config::Value map = config::Value::map();
  if (evaluate.resize > 0) map.set("resize", config::Value::plain(fmt::format("{}", evaluate.resize)));
  if (evaluate.side_ratio > 0)
    map.set("side_ratio", config::Value::plain(config::number_text(evaluate.side_ratio)));
  return map;
}

/// Whether images of the network's height and width are neither cropped nor resized.
bool takes_whole_images(const ImageTransform& resolved, const ImageShape& out) {
  const EvaluateOptions& evaluate = resolved.evaluate;
  const Box box = evaluate.resize > 0
                      ? resize_box(out.width, out.height, evaluate.resize, out.width, out.height)
                      : side_ratio_box(out.width, out.height, evaluate.side_ratio, out.width, out.height);
  return resolved.augment.crop.kind == Kind::none && box == Box{0, 0, out.width, out.height};
}

}  // namespace

void image_fields(config::Visitor& v, AugmentOptions& augment, EvaluateOptions& evaluate,
                  Interpolation& interpolation) {
  v.shape([] {
    AugmentOptions none;
    return config::Shape::choice(
        {config::Shape::word({"none"}),
         config::Shape::map([&](config::Visitor& inner) { augment_fields(inner, none); })});
  });
  v.custom(
      "augment", "`none` or {pad, mirror, crop, jitter, pca}", "random changes to the training images",
      [&](const config::Value& value, const std::string& path) { parse_augment(value, path, augment); },
      [&] {
        if (!augment.any()) return config::Value::plain("none");
        config::Writer writer;
        augment_fields(writer, augment);
        return writer.take();
      });
  v.shape(evaluate_shape);
  v.custom(
      "evaluate", "`auto`, {resize: pixels} or {side_ratio: share}",
      "what is evaluated: the centre of the network's size once the shorter side is resized, or the centred "
      "crop whose side is a share of the shorter one; `auto`: images of the network's size as they are, "
      "others "
      "with a side ratio of 0.875",
      [&](const config::Value& value, const std::string& path) { parse_evaluate(value, path, evaluate); },
      [&] { return write_evaluate(evaluate); });
  v.choice(
      "interpolation", interpolation, {{"linear", Interpolation::linear}, {"area", Interpolation::area}},
      "how images are resized: from the nearest 2 x 2 pixels, or by the mean over an area where they shrink; "
      "`area` is smoother and slower");
}

bool can_become(const ImageShape& stored, const ImageShape& input) {
  return stored.height == input.height && stored.width == input.width &&
         (stored.channels == input.channels || (stored.channels == 1 && input.channels == 3));
}

ImageTransform resolve(const ImageTransform& options, const std::optional<ImageShape>& fixed_shape,
                       const ImageShape& out) {
  ImageTransform resolved = options;
  const bool has_size = fixed_shape && fixed_shape->height == out.height && fixed_shape->width == out.width;
  const std::string network = fmt::format("the network's input of {} x {}", out.height, out.width);
  const std::int64_t channels = fixed_shape ? fixed_shape->channels : 3;
  // Colour becomes luminance, or the other way.
  if (channels != out.channels && channels * out.channels != 3)
    throw ConfigError(
        fmt::format("network.input: images of {} channels cannot become {}", channels, out.channels));
  if (options.augment.pad > 0 && !has_size)
    throw ConfigError(
        fmt::format("data.augment.pad: is for images that have {}; use data.augment.crop", network));
  const JitterOptions& jitter = options.augment.jitter;
  if (out.channels != 3 && (jitter.saturation > 0 || jitter.hue > 0 || options.augment.pca > 0))
    throw ConfigError(
        "data.augment: jitter's saturation and hue, and pca, are for networks whose input has "
        "three channels");
  if (options.evaluate.resize > 0 && options.evaluate.resize < std::max(out.height, out.width))
    throw ConfigError(
        fmt::format("data.evaluate.resize: {} is less than {}", options.evaluate.resize, network));
  if (options.evaluate.automatic()) resolved.evaluate.side_ratio = has_size ? 1 : default_side_ratio;
  const bool by_area = options.interpolation == Interpolation::area;
  const std::int64_t most = by_area ? most_area_channels : most_opencv_channels;
  if (out.channels > most && !(has_size && takes_whole_images(resolved, out)))
    throw ConfigError(
        fmt::format("network.input: images of {} channels would be cropped or resized here; {}at most {} "
                    "channels can be",
                    out.channels, by_area ? "with data.interpolation: area " : "", most));
  return resolved;
}

}  // namespace lpsgd
