// Dense layers: one product over the samples, or over all their frames, with bias and ReLU in it.
#include <algorithm>

#include "nn/cuda/product.h"

namespace lpsgd::cuda {
namespace {

class DenseOp final : public Op {
 public:
  DenseOp(Context& context, const Binding& b) : context_(context), b_(b) {
    const std::int64_t out = b.shape.back(), in = b.inputs[0].shape.back(), rows = b.elements() / out;
    const void* x = b.inputs[0].value;
    const void* dy = b.training ? b.output_gradients[0] : nullptr;
    weights_ = context.operand(b.parameters[0].value);
    ProductDesc d;
    // y = x W^T + b, W (out, in).
    d = {.m = rows, .n = out, .k = in, .b_transposed = true, .out = b.type};
    d.bias = has_bias() ? context.operand(b.parameters[1].value) : nullptr;
    d.relu = b.relu;
    forward_.emplace(context, d, x, weights_, b.output);
    if (!b.training) return;
    d = {.m = out, .n = in, .k = rows, .a_transposed = true, .out = DataType::f32};
    weight_gradient_.emplace(context, d, dy, x, b.parameters[0].gradient);
    if (b.inputs[0].gradient) {
      d = {.m = rows, .n = in, .k = out, .out = b.type};
      input_gradient_.emplace(context, d, dy, weights_, b.inputs[0].gradient);
    }
    if (!has_bias()) return;
    cut_ = cut_rows(b.type, rows, out);
    partials_ = context.partials<double>(cut_);
  }

  void forward(const Pass&) override { forward_->run(b_.inputs[0].value, weights_, b_.output); }

  void backward() override {
    backward_parameters();
    backward_inputs();
  }
  bool has_backward_parts() const override { return true; }
  void backward_parameters() override {
    const void* dy = b_.output_gradients[0];
    weight_gradient_->run(dy, b_.inputs[0].value, b_.parameters[0].gradient);
    if (has_bias())
      check(launch_column_sums(b_.type, dy, cut_, context_.here(partials_), b_.parameters[1].gradient,
                               nullptr, context_.handle()));
  }
  void backward_inputs() override {
    if (input_gradient_) input_gradient_->run(b_.output_gradients[0], weights_, b_.inputs[0].gradient);
  }
  std::optional<Workspaces> workspaces() const override {
    const auto of = [](const std::optional<Product>& product) { return product ? product->workspace() : 0; };
    return Workspaces{of(forward_), of(input_gradient_), of(weight_gradient_)};
  }

 private:
  bool has_bias() const { return b_.parameters.size() > 1; }

  Context& context_;
  Binding b_;
  const void* weights_ = nullptr;
  std::optional<Product> forward_, input_gradient_, weight_gradient_;
  Cut cut_;
  double* partials_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_dense(Context& context, const Binding& binding) {
  return std::make_unique<DenseOp>(context, binding);
}

}  // namespace lpsgd::cuda
