// The table of layer kinds, and what layers share.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "nn/layer.h"

namespace lpsgd {

namespace {

template <Activation kind>
std::unique_ptr<Layer> make_activation() {
  return make_activation_layer(kind);
}

}  // namespace

std::span<const LayerKind> layer_kinds() {
  static const std::array kinds{
      LayerKind{"conv", "2-D convolution (cross-correlation, as in every framework)", make_conv_layer},
      LayerKind{"dense", "fully connected: y = W x + b; takes a flat input, or each frame of a sequence",
                make_dense_layer},
      LayerKind{"lstm", "long short-term memory over a sequence; lengths may differ", make_lstm_layer},
      LayerKind{"embedding", "a table with a vector for each token number", make_embedding_layer},
      LayerKind{"batch_norm", "batch normalisation over N, H, W (Ioffe and Szegedy 2015)",
                make_batch_norm_layer},
      LayerKind{"layer_norm",
                "normalisation over the features of each frame, or the channels of each pixel (Ba, Kiros and "
                "Hinton 2016)",
                make_layer_norm_layer},
      LayerKind{"group_norm", "normalisation over groups of a sample's channels (Wu and He 2018)",
                make_group_norm_layer},
      LayerKind{
          "attention",
          "multi-head attention of a sequence to itself (Vaswani et al. 2017, section 3.2): reads "
          "queries, keys and values, side by side in one input or as three inputs; the products before and "
          "behind it are dense layers",
          make_attention_layer},
      LayerKind{"position",
                "adds to each frame a vector for its position, trained or fixed (Gehring et al. 2017)",
                make_position_layer},
      LayerKind{"class_token",
                "puts a trained vector before the frames, as one more frame (Dosovitskiy et al. 2020)",
                make_class_token_layer},
      LayerKind{"select_frame", "one frame of a sequence as features", make_select_frame_layer},
      LayerKind{"mean_frames", "the mean over the frames of a sequence as features", make_mean_frames_layer},
      LayerKind{"to_sequence", "an image as a sequence: its pixels, row by row", make_to_sequence_layer},
      LayerKind{"relu", "max(x, 0)", make_activation<Activation::relu>},
      LayerKind{"sigmoid", "1 / (1 + exp(-x))", make_activation<Activation::sigmoid>},
      LayerKind{"tanh", "hyperbolic tangent", make_activation<Activation::tanh>},
      LayerKind{"relu6", "min(max(x, 0), 6), as in MobileNet (Howard et al. 2017)",
                make_activation<Activation::relu6>},
      LayerKind{"hardsigmoid", "min(max(x + 3, 0), 6) / 6, as in MobileNet v3 (Howard et al. 2019)",
                make_activation<Activation::hardsigmoid>},
      LayerKind{"hardswish", "x times its hardsigmoid, as in MobileNet v3 (Howard et al. 2019)",
                make_activation<Activation::hardswish>},
      LayerKind{"silu", "x times its sigmoid, also called swish (Elfwing et al. 2017)",
                make_activation<Activation::silu>},
      LayerKind{"gelu",
                "x times the normal distribution's probability of less than x (Hendrycks and Gimpel 2016)",
                make_activation<Activation::gelu>},
      LayerKind{"dropout",
                "in training sets values to 0 at random and scales the others, so that the expected value "
                "stays the same; "
                "the draws depend on seed, step, layer and position in the global batch",
                make_dropout_layer},
      LayerKind{"lrn", "local response normalisation across channels (Krizhevsky et al. 2012)",
                make_lrn_layer},
      LayerKind{"scale", "multiplies by a constant", make_scale_layer},
      LayerKind{"add", "elementwise sum of two or more inputs of one shape", make_add_layer},
      LayerKind{
          "multiply",
          "elementwise product of two inputs of one shape, or of an image and a gate, (1, 1, C) or (C), "
          "which multiplies every pixel, as in squeeze-and-excitation (Hu et al. 2017)",
          make_multiply_layer},
      LayerKind{"concat", "joins the channels (or features) of its inputs", make_concat_layer},
      LayerKind{"max_pool", "largest value of each window", make_max_pool_layer},
      LayerKind{"average_pool", "mean of each window", make_average_pool_layer},
      LayerKind{"flatten", "(H, W, C) to features, in PyTorch's order C, H, W", make_flatten_layer},
  };
  return kinds;
}

std::string shape_text(const Shape& shape) {
  std::string out = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + ")";
}

std::optional<std::int64_t> elements_of(const Shape& shape, std::int64_t limit) {
  std::int64_t product = 1;
  for (const std::int64_t d : shape)
    if (d < 0 || __builtin_mul_overflow(product, d, &product) || product > limit) return std::nullopt;
  return product;
}

const Shape& Layer::single(std::span<const Shape> inputs) {
  if (inputs.size() != 1) throw LayerError(fmt::format("takes one input, got {}", inputs.size()));
  return inputs[0];
}

const Shape& Layer::image(std::span<const Shape> inputs) {
  const Shape& in = single(inputs);
  if (in.size() != 3) throw LayerError(fmt::format("takes an image (H, W, C), got {}", shape_text(in)));
  return in;
}

const Shape& Layer::without_frames(std::span<const Shape> inputs, const char* kind) {
  const Shape& in = single(inputs);
  if (in.size() == 2)
    throw LayerError(
        fmt::format("{} takes images or features, not the sequence {}: its statistics would count what lies "
                    "behind a sequence's end",
                    kind, shape_text(in)));
  return in;
}

const Shape& Layer::sequence(std::span<const Shape> inputs) {
  const Shape& in = single(inputs);
  if (in.size() != 2)
    throw LayerError(fmt::format("takes a sequence (frames, features), got {}", shape_text(in)));
  return in;
}

Init he_normal(std::int64_t fan) {
  return {Init::Kind::normal, std::sqrt(2.0) / std::sqrt(static_cast<double>(fan))};
}

Init uniform_over(std::int64_t fan) {
  return {Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(fan))};
}

void InitOptions::fields(config::Visitor& v) {
  v.field("init_deviation", deviation, "initial weights: normal with this deviation; 0: by the rule above",
          {.min = 0});
  v.field("init_range", range,
          "initial weights and biases: uniform between minus this and this; 0: by the rule above",
          {.min = 0});
  v.custom(
      "init_bias", "number", "initial biases: all this number; none: by the rule above",
      [&](const config::Value& value, const std::string& path) { bias = config::to_number(value, path); },
      [] { return config::Value(); });
}

void InitOptions::check() const {
  if (deviation > 0 && range > 0) throw LayerError("init_deviation and init_range exclude each other");
}

Init InitOptions::weights(Init own) const {
  if (range > 0) return {Init::Kind::uniform, range};
  return deviation > 0 ? Init{Init::Kind::normal, deviation} : own;
}

Init InitOptions::biases(Init own) const {
  if (bias) return {Init::Kind::constant, *bias};
  return range > 0 ? Init{Init::Kind::uniform, range} : own;
}

void size_field(config::Visitor& visitor, const char* key, Size2& size, const char* help,
                config::Range range) {
  const auto parse = [&](const config::Value& value, const std::string& path) {
    if (!value.is_sequence()) {
      size.h = size.w = config::to_integer(value, path, range);
      return;
    }
    if (value.items.size() != 2)
      config::fail(
          value.origin, path,
          fmt::format("expected an integer or [height, width], got a list of {}", value.items.size()));
    size.h = config::to_integer(value.items[0], path + "[0]", range);
    size.w = config::to_integer(value.items[1], path + "[1]", range);
  };
  const auto write = [&] { return config::Value::plain(fmt::format("{}", size.h)); };
  const std::string type = fmt::format("integer {} or [height, width]", range.text());
  visitor.custom(key, type.c_str(), help, parse, write);
}

}  // namespace lpsgd
