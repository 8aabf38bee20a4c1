// Fully connected layer: y = W x + b, W of shape out x in; on a sequence, the same for each frame.
#include <fmt/core.h>

#include <utility>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class DenseLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("units", units_, "output features", {.min = 1, .max = 1 << 24});
    v.field("bias", bias_, "add a trained bias to each output");
    v.field(
        "weight_of", weight_of_,
        "an embedding whose table is also this layer's weight, with the embedding's initial values; none: it "
        "has its own");
    init_.fields(v);
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = single(inputs);
    init_.check();
    if (weight_of_ != "none" && init_.deviation > 0)
      throw LayerError("init_deviation has no effect beside weight_of: give it to the embedding");
    if (in.size() > 2)
      throw LayerError(fmt::format("takes a flat input, got {}; put a flatten before it", shape_text(in)));
    features_ = in.back();
    frames_ = in.size() == 2 ? in[0] : 1;
    Shape out = in;
    out.back() = units_;
    return out;
  }

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> out{
        {"weight", TensorKind::dense, {units_, features_}, init_.weights(uniform_over(features_))}};
    if (bias_) out.push_back({"bias", TensorKind::bias, {units_}, init_.biases(uniform_over(features_))});
    return out;
  }

  std::string weight_of() const override { return weight_of_; }

  std::int64_t flops() const override { return frames_ * (2 * units_ * features_ + (bias_ ? units_ : 0)); }

  bool can_fuse(Epilogue epilogue) const override { return !epilogue.residual; }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.dense(binding);
  }
  void write_operators(OperatorWriter& out) const override {
    if (out.input_shape().size() == 1) {
      std::vector<OperatorWriter::Value> in{out.input(), out.tensor("weight")};
      if (bias_) in.push_back(out.tensor("bias"));
      return out.output(out.add("Gemm", std::move(in), {{"transB", std::int64_t{1}}}));
    }
    const OperatorWriter::Value weight = out.add("Transpose", {out.tensor("weight")});
    const OperatorWriter::Value product = out.add("MatMul", {out.input(), weight});
    out.output(bias_ ? out.add("Add", {product, out.tensor("bias")}) : product);
  }

 private:
  InitOptions init_;
  std::string weight_of_ = "none";
  std::int64_t units_ = 1, features_ = 0, frames_ = 1;
  bool bias_ = true;
};

}  // namespace

std::unique_ptr<Layer> make_dense_layer() {
  return std::make_unique<DenseLayer>();
}

}  // namespace lpsgd
