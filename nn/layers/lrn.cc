// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton 2012), with alpha divided by
// the window's size as in Caffe and PyTorch: y_c = x_c * (k + alpha / size * sum of x_j^2)^-beta, j from c -
// size / 2 to c + (size - 1) / 2.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class LrnLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("size", desc_.size, "channels in a window", {.min = 1, .max = max_option});
    v.field("alpha", desc_.alpha, "weight of the window's mean square", {.min = 0});
    v.field("beta", desc_.beta, "exponent", {.min = 0});
    v.field("k", desc_.k, "added to the weighted mean square", {.min = 0, .min_open = true});
  }

  Shape infer(std::span<const Shape> inputs) override {
    elements_ = elements_of(image(inputs)).value_or(0);
    channels_ = inputs[0].back();
    return inputs[0];
  }
  std::int64_t flops() const override { return (2 * std::min(desc_.size, channels_) + 4) * elements_; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.lrn(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override {
    using Value = OperatorWriter::Value;
    if (desc_.size % 2 == 1)  // ONNX's window of an even size lies one channel further on
      return out.output(
          out.add("LRN", {out.input()},
                  {{"size", desc_.size}, {"alpha", desc_.alpha}, {"beta", desc_.beta}, {"bias", desc_.k}}));
    // The mean of the squares over the window is an average pooling over channels as a third dimension.
    const Value axis = out.constant("axis", std::vector<std::int64_t>{1});
    const Value squares = out.add("Unsqueeze", {out.add("Mul", {out.input(), out.input()}), axis});
    const std::int64_t before = desc_.size / 2, behind = (desc_.size - 1) / 2;
    const Value mean = out.add("AveragePool", {squares},
                               {{"kernel_shape", std::vector<std::int64_t>{desc_.size, 1, 1}},
                                {"strides", std::vector<std::int64_t>{1, 1, 1}},
                                {"pads", std::vector<std::int64_t>{before, 0, 0, behind, 0, 0}},
                                {"count_include_pad", std::int64_t{1}}});
    const auto number = [&](const char* name, double value) {
      return out.constant(name, {}, {static_cast<float>(value)});
    };
    const Value scaled = out.add("Mul", {out.add("Squeeze", {mean, axis}), number("alpha", desc_.alpha)});
    const Value base = out.add("Add", {scaled, number("k", desc_.k)});
    out.output(out.add("Div", {out.input(), out.add("Pow", {base, number("beta", desc_.beta)})}));
  }

 private:
  LrnDesc desc_;
  std::int64_t elements_ = 0, channels_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_lrn_layer() {
  return std::make_unique<LrnLayer>();
}

}  // namespace lpsgd
