// Local response normalisation across channels (Krizhevsky, Sutskever, Hinton 2012), with alpha divided by
// the window's size as in Caffe and PyTorch: y_c = x_c * (k + alpha / size * sum of x_j^2)^-beta, j from c -
// size / 2 to c + (size - 1) / 2.
#include "nn/layer.h"
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
    return inputs[0];
  }
  std::int64_t flops() const override { return (2 * desc_.size + 4) * elements_; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.lrn(binding, desc_);
  }

 private:
  LrnDesc desc_;
  std::int64_t elements_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_lrn_layer() {
  return std::make_unique<LrnLayer>();
}

}  // namespace lpsgd
