// Dense layers: one product over the samples, or over all their frames.
#include "nn/cpu/product.h"

namespace lpsgd::cpu {
namespace {

class DenseOp final : public Op {
 public:
  DenseOp(Context& context, const Binding& b)
      : b_(b),
        product_(context, describe(b), b.parameters[0].value, has_bias() ? b.parameters[1].value : nullptr) {}

  void forward(const Pass&) override {
    product_.prepare_forward();
    product_.forward(b_.inputs[0].value, b_.output);
  }

  void backward() override {
    const void* dy = b_.output_gradients[0];
    product_.weight_gradient(b_.inputs[0].value, dy, b_.parameters[0].gradient,
                             has_bias() ? b_.parameters[1].gradient : nullptr);
    if (!b_.inputs[0].gradient) return;
    product_.prepare_input_gradient();
    product_.input_gradient(dy, b_.inputs[0].gradient);
  }

 private:
  bool has_bias() const { return b_.parameters.size() > 1; }
  static ProductDesc describe(const Binding& b) {
    return {.rows = b.elements() / b.shape.back(),
            .in = b.inputs[0].shape.back(),
            .out = b.shape.back(),
            .type = b.type,
            .sums = b.type,
            .bias = b.parameters.size() > 1,
            .relu = b.relu,
            .data = b.training && b.inputs[0].gradient != nullptr,
            .gradient = b.training,
            .shared_copy = true};
  }

  Binding b_;
  Product product_;
};

}  // namespace

std::unique_ptr<Op> make_dense(Context& context, const Binding& binding) {
  return std::make_unique<DenseOp>(context, binding);
}

}  // namespace lpsgd::cpu
