// An image as features in PyTorch's order (C, H, W), so that dense weights after it mean the same there. A
// 1x1 image or a single channel is only viewed with another shape; anything else is transposed.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class FlattenLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = single(inputs);
    view_ = in.size() != 3 || in[2] == 1 || in[0] * in[1] == 1;
    const auto elements = elements_of(in);
    if (!elements) throw LayerError("the input is too large");
    return {*elements};
  }
  bool is_view() const override { return view_; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.channels_first(binding);
  }
  void write_operators(OperatorWriter& out) const override { out.output(out.add("Flatten", {out.input()})); }

 private:
  bool view_ = false;
};

}  // namespace

std::unique_ptr<Layer> make_flatten_layer() {
  return std::make_unique<FlattenLayer>();
}

}  // namespace lpsgd
