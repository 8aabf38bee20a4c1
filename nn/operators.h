// A network in the operators of ONNX (https://onnx.ai/onnx/operators), version 13 of its operator set. Layers
// say which operators they consist of in evaluation, and know nothing of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nn/shape.h"

namespace lpsgd {

/// Receives the operators of one layer after another. A value is known by its name. The first dimension of
/// every value is the batch. Images are (batch, C, H, W), which lpsgd itself has as (H, W, C).
class OperatorWriter {
 public:
  using Value = std::string;
  using Attribute = std::variant<std::int64_t, double, std::vector<std::int64_t>>;
  using Attributes = std::vector<std::pair<const char*, Attribute>>;

  virtual ~OperatorWriter() = default;

  virtual std::vector<Value> inputs() const = 0;
  Value input() const { return inputs().front(); }
  /// Of the first input, as Layer::infer() got it: without the batch, images as (H, W, C).
  virtual const Shape& input_shape() const = 0;

  /// The layer's tensor or running statistic of this suffix, in PyTorch's order. To be called once for each.
  virtual Value tensor(const char* suffix) = 0;
  /// A tensor with a value for each feature of the first input, or channel of its pixels: it multiplies that
  /// input.
  Value feature_tensor(const char* suffix) {
    const Value value = tensor(suffix);
    return input_shape().size() == 3 ? add("Unsqueeze", {value, constant("pixel", {1, 2})}) : value;
  }
  /// Its values, valid until the layer returns.
  virtual std::span<const float> values(const char* suffix) = 0;

  virtual Value constant(const char* name, const Shape& shape, std::vector<float> values) = 0;
  virtual Value constant(const char* name, std::vector<std::int64_t> values) = 0;

  /// Adds an operator with this many outputs, and returns these. An empty input is one that is left out.
  virtual std::vector<Value> add(const char* op, std::vector<Value> inputs, Attributes attributes,
                                 std::size_t outputs) = 0;
  Value add(const char* op, std::vector<Value> inputs, Attributes attributes = {}) {
    return add(op, std::move(inputs), std::move(attributes), 1).front();
  }

  /// Whether what layers carry from pass to pass (Layer::carried()) are inputs and outputs of the network.
  virtual bool has_state() const = 0;
  /// The state before the pass, (1, batch, features).
  virtual Value state(const char* suffix, std::int64_t features) = 0;
  /// The state after the pass, of the same shape.
  virtual void set_state(const char* suffix, std::int64_t features, const Value& value) = 0;

  /// The layer's output. Every layer calls it once, last.
  virtual void output(const Value& value) = 0;
};

}  // namespace lpsgd
