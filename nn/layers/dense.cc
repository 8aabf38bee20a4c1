// Fully connected layer: y = W x + b, W of shape out x in.
#include <fmt/core.h>

#include "nn/layer.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class DenseLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("units", units_, "output features", {.min = 1, .max = 1 << 24});
    v.field("bias", bias_, "add one trained number an output");
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = single(inputs);
    if (in.size() != 1)
      throw Misfit(fmt::format("takes a flat input, got {}; put a flatten before it", shape_text(in)));
    features_ = in[0];
    return {units_};
  }

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> out{
        {"weight", TensorKind::dense, {units_, features_}, Init::uniform_fan_in, features_}};
    if (bias_) out.push_back({"bias", TensorKind::bias, {units_}, Init::uniform_fan_in, features_});
    return out;
  }

  std::int64_t flops() const override { return 2 * units_ * features_ + (bias_ ? units_ : 0); }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.dense(binding);
  }

 private:
  std::int64_t units_ = 1, features_ = 0;
  bool bias_ = true;
};

}  // namespace

std::unique_ptr<Layer> make_dense_layer() {
  return std::make_unique<DenseLayer>();
}

}  // namespace lpsgd
