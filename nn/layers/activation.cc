// Elementwise activations. Those whose gradient follows from their output may work in place.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

/// max(alpha x + beta, 0), at most 1.
OperatorWriter::Value hard_sigmoid(OperatorWriter& out, const OperatorWriter::Value& x) {
  return out.add("HardSigmoid", {x}, {{"alpha", 1.0 / 6}, {"beta", 0.5}});
}

OperatorWriter::Value scalar(OperatorWriter& out, const char* name, float value) {
  return out.constant(name, {}, std::vector<float>{value});
}

/// x (1 + erf(x / sqrt(2))) / 2: this version of the operators has no Gelu.
OperatorWriter::Value gelu(OperatorWriter& out, const OperatorWriter::Value& x) {
  const auto erf = out.add("Erf", {out.add("Mul", {x, scalar(out, "root_of_half", 0.707106781f)})});
  const auto twice = out.add("Add", {erf, scalar(out, "one", 1)});
  return out.add("Mul", {x, out.add("Mul", {twice, scalar(out, "half", 0.5f)})});
}

OperatorWriter::Value operators(OperatorWriter& out, const OperatorWriter::Value& x, Activation kind) {
  switch (kind) {
    case Activation::relu:
      return out.add("Relu", {x});
    case Activation::sigmoid:
      return out.add("Sigmoid", {x});
    case Activation::tanh:
      return out.add("Tanh", {x});
    case Activation::relu6:
      return out.add("Clip", {x, scalar(out, "least", 0), scalar(out, "most", 6)});
    case Activation::hardsigmoid:
      return hard_sigmoid(out, x);
    case Activation::hardswish:
      return out.add("Mul", {x, hard_sigmoid(out, x)});
    case Activation::silu:
      return out.add("Mul", {x, out.add("Sigmoid", {x})});
    case Activation::gelu:
      return gelu(out, x);
  }
  return x;
}

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(Activation kind) : kind_(kind) {}
  Shape infer(std::span<const Shape> inputs) override { return single(inputs); }
  bool is_relu() const override { return kind_ == Activation::relu; }
  bool can_run_in_place() const override { return gradient_reads_output(kind_); }
  bool backward_reads_input() const override { return !gradient_reads_output(kind_); }
  bool backward_reads_output() const override { return gradient_reads_output(kind_); }
  bool sums_gradients() const override { return true; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.activation(binding, kind_);
  }
  void write_operators(OperatorWriter& out) const override { out.output(operators(out, out.input(), kind_)); }

 private:
  const Activation kind_;
};

}  // namespace

std::unique_ptr<Layer> make_activation_layer(Activation kind) {
  return std::make_unique<ActivationLayer>(kind);
}

}  // namespace lpsgd
