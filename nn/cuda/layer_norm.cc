// Layer normalisation: the operation that launches the kernels of layer_norm.cu.
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

class LayerNormOp final : public Op {
 public:
  LayerNormOp(Context& context, const Binding& b, const LayerNormDesc& desc) : context_(context), b_(b) {
    const std::int64_t width = b.shape.back();
    shape_ = {b.elements() / width, static_cast<int>(width), static_cast<float>(desc.eps)};
    if (!b.training) return;
    moments_ = context.array<RowMoments>(shape_.rows);
    sums_ = context.row_sums(shape_.rows, width);
  }

  void forward(const Pass& pass) override {
    check(launch_layer_norm(b_.type, shape_, b_.inputs[0].value, b_.parameters[0].value,
                            has_bias() ? b_.parameters[1].value : nullptr, b_.output,
                            pass.training ? moments_ : nullptr, context_.handle()));
  }

  void backward() override {
    const void *g = b_.output_gradients[0], *x = b_.inputs[0].value;
    check(launch_layer_norm_sums(b_.type, g, x, moments_, sums_, b_.parameters[0].gradient,
                                 has_bias() ? b_.parameters[1].gradient : nullptr, context_.handle()));
    if (b_.inputs[0].gradient)
      check(launch_layer_norm_gradient(b_.type, shape_, g, x, b_.parameters[0].value, moments_,
                                       b_.inputs[0].gradient, context_.handle()));
  }

 private:
  bool has_bias() const { return b_.parameters.size() > 1; }

  Context& context_;
  Binding b_;
  LayerNormShape shape_;
  RowMoments* moments_ = nullptr;
  RowSums sums_;
};

}  // namespace

std::unique_ptr<Op> make_layer_norm(Context& context, const Binding& binding, const LayerNormDesc& desc) {
  return std::make_unique<LayerNormOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
