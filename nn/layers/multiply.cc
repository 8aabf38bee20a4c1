// Elementwise product, for gates: an image's channels, or each value, are weighted by what another layer
// computes.
#include <fmt/core.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

/// Whether `gate` has one value for each channel of the image.
bool is_gate_of(const Shape& gate, const Shape& image) {
  if (image.size() != 3) return false;
  const std::int64_t channels = image[2];
  return gate == Shape{channels} || gate == Shape{1, 1, channels};
}

class MultiplyLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override {
    if (inputs.size() != 2) throw LayerError(fmt::format("takes two inputs, got {}", inputs.size()));
    const Shape &a = inputs[0], &b = inputs[1];
    if (a != b && !is_gate_of(a, b) && !is_gate_of(b, a))
      throw LayerError(
          fmt::format("inputs {} and {} differ, and neither has one value for each channel of the other, as "
                      "(1, 1, C) or (C)",
                      shape_text(a), shape_text(b)));
    gate_first_ = a != b && is_gate_of(a, b);
    gate_is_flat_ = a.size() != b.size();
    const Shape& out = gate_first_ ? b : a;
    flops_ = elements_of(out).value_or(0);
    return out;
  }
  std::int64_t flops() const override { return flops_; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    if (!gate_first_) return backend.multiply(binding);
    Binding swapped = binding;
    std::swap(swapped.inputs[0], swapped.inputs[1]);
    return backend.multiply(swapped);
  }
  void write_operators(OperatorWriter& out) const override {
    std::vector<OperatorWriter::Value> inputs = out.inputs();
    if (gate_is_flat_) {
      OperatorWriter::Value& gate = inputs[gate_first_ ? 0 : 1];
      gate = out.add("Unsqueeze", {gate, out.constant("axes", {2, 3})});
    }
    out.output(out.add("Mul", std::move(inputs)));
  }

 private:
  std::int64_t flops_ = 0;
  bool gate_first_ = false, gate_is_flat_ = false;
};

}  // namespace

std::unique_ptr<Layer> make_multiply_layer() {
  return std::make_unique<MultiplyLayer>();
}

}  // namespace lpsgd
