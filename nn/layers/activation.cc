// Elementwise activations. Their backward needs the output only, so they may work in place.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

template <Activation kind>
class ActivationLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override { return single(inputs); }
  bool is_relu() const override { return kind == Activation::relu; }
  bool can_run_in_place() const override { return true; }
  bool backward_reads_input() const override { return false; }
  bool backward_reads_output() const override { return true; }
  bool sums_gradients() const override { return true; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.activation(binding, kind);
  }
  void write_operators(OperatorWriter& out) const override {
    constexpr const char* names[] = {"Relu", "Sigmoid", "Tanh", "Clip"};  // in the order of Activation
    std::vector<std::string> inputs{out.input()};
    if constexpr (kind == Activation::relu6) {
      inputs.push_back(out.constant("least", {}, std::vector<float>{0}));
      inputs.push_back(out.constant("most", {}, std::vector<float>{6}));
    }
    out.output(out.add(names[static_cast<std::size_t>(kind)], std::move(inputs)));
  }
};

}  // namespace

std::unique_ptr<Layer> make_relu_layer() {
  return std::make_unique<ActivationLayer<Activation::relu>>();
}

std::unique_ptr<Layer> make_sigmoid_layer() {
  return std::make_unique<ActivationLayer<Activation::sigmoid>>();
}

std::unique_ptr<Layer> make_tanh_layer() {
  return std::make_unique<ActivationLayer<Activation::tanh>>();
}

std::unique_ptr<Layer> make_relu6_layer() {
  return std::make_unique<ActivationLayer<Activation::relu6>>();
}

}  // namespace lpsgd
