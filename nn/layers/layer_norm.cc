// Layer normalisation (Ba, Kiros and Hinton 2016): y = (x - mean) / sqrt(variance + eps) * weight + bias over
// the last dimension, with its own mean and biased variance in every row, in training and evaluation alike.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class LayerNormLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("eps", desc_.eps, "added to the variance", {.min = 0, .min_open = true});
    v.field("bias", desc_.bias, "add a trained bias to each feature");
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = single(inputs);
    features_ = in.back();
    elements_ = elements_of(in).value_or(0);
    return in;
  }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> out{{"weight", TensorKind::norm, {features_}, Init{Init::Kind::constant, 1}}};
    if (desc_.bias) out.push_back({"bias", TensorKind::norm, {features_}, Init{}});
    return out;
  }
  std::int64_t flops() const override { return 2 * elements_; }
  std::int64_t kept_bytes() const override {  // each row's mean and inverse deviation
    return elements_ / features_ * 2 * static_cast<std::int64_t>(sizeof(float));
  }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.layer_norm(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override {
    // This version of the operators has no LayerNormalization. An image's channels are dimension 1.
    const bool is_image = out.input_shape().size() == 3;
    const OperatorWriter::Attributes over{{"axes", std::vector<std::int64_t>{is_image ? 1 : -1}}};
    const OperatorWriter::Value centred =
        out.add("Sub", {out.input(), out.add("ReduceMean", {out.input()}, over)});
    const OperatorWriter::Value variance = out.add("ReduceMean", {out.add("Mul", {centred, centred})}, over);
    const OperatorWriter::Value eps =
        out.constant("eps", {}, std::vector<float>{static_cast<float>(desc_.eps)});
    const OperatorWriter::Value deviation = out.add("Sqrt", {out.add("Add", {variance, eps})});
    const OperatorWriter::Value scaled =
        out.add("Mul", {out.add("Div", {centred, deviation}), out.feature_tensor("weight")});
    out.output(desc_.bias ? out.add("Add", {scaled, out.feature_tensor("bias")}) : scaled);
  }

 private:
  LayerNormDesc desc_;
  std::int64_t features_ = 1, elements_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_layer_norm_layer() {
  return std::make_unique<LayerNormLayer>();
}

}  // namespace lpsgd
