// Dense layers by oneDNN's inner product, with weights in the layout that it prefers.
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

using dnnl::memory;
constexpr auto plain_tag = memory::format_tag::ab;

class DenseOp final : public Op {
 public:
  DenseOp(Context& context, const Binding& b) : context_(context) {
    const InputView& in = b.inputs[0];
    const std::int64_t features = in.shape.back(), units = b.shape.back();
    const std::int64_t rows = b.elements() / units;  // samples, or all their frames
    const memory::desc src({rows, features}, f32, plain_tag);
    const memory::desc dst({rows, units}, f32, plain_tag);
    const memory::desc plain({units, features}, f32, plain_tag);
    const memory::desc any({units, features}, f32, memory::format_tag::any);
    const bool has_bias = b.parameters.size() > 1;
    const memory::desc bias = has_bias ? memory::desc({units}, f32, memory::format_tag::a) : memory::desc();
    const dnnl::primitive_attr attr = user_scratchpad();

    const memory src_memory = view(context, src, in.value);
    const memory weights = view(context, plain, b.parameters[0].value);
    const dnnl::inner_product_forward::primitive_desc forward(
        {b.training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference, src, any, bias,
         dst},
        user_scratchpad(b.relu), context.engine);
    forward_weights_ = to_preferred(context, weights, forward.weights_desc());
    forward_ = {dnnl::inner_product_forward(forward),
                {{DNNL_ARG_SRC, src_memory},
                 {DNNL_ARG_WEIGHTS, forward_weights_.preferred},
                 {DNNL_ARG_DST, view(context, dst, b.output)},
                 {DNNL_ARG_SCRATCHPAD, context.scratchpad(forward.scratchpad_desc())}}};
    if (has_bias) forward_.arguments[DNNL_ARG_BIAS] = view(context, bias, b.parameters[1].value);
    if (!b.training) return;

    const memory diff_dst = view(context, dst, b.output_gradients[0]);
    if (in.gradient) {
      const dnnl::inner_product_backward_data::primitive_desc data({src, any, dst}, attr, context.engine,
                                                                   forward);
      data_weights_ = data.weights_desc() == forward.weights_desc()
                          ? ReorderedWeights{forward_weights_.preferred, {}}
                          : to_preferred(context, weights, data.weights_desc());
      data_ = {dnnl::inner_product_backward_data(data),
               {{DNNL_ARG_DIFF_DST, diff_dst},
                {DNNL_ARG_WEIGHTS, data_weights_.preferred},
                {DNNL_ARG_DIFF_SRC, view(context, src, in.gradient)},
                {DNNL_ARG_SCRATCHPAD, context.scratchpad(data.scratchpad_desc())}}};
    }
    const dnnl::inner_product_backward_weights::primitive_desc gradient({src, any, bias, dst}, attr,
                                                                        context.engine, forward);
    gradient_weights_ =
        from_preferred(context, view(context, plain, b.parameters[0].gradient), gradient.diff_weights_desc());
    gradient_ = {dnnl::inner_product_backward_weights(gradient),
                 {{DNNL_ARG_SRC, src_memory},
                  {DNNL_ARG_DIFF_DST, diff_dst},
                  {DNNL_ARG_DIFF_WEIGHTS, gradient_weights_.preferred},
                  {DNNL_ARG_SCRATCHPAD, context.scratchpad(gradient.scratchpad_desc())}}};
    if (has_bias) gradient_.arguments[DNNL_ARG_DIFF_BIAS] = view(context, bias, b.parameters[1].gradient);
  }

  void forward(const Pass&) override {
    forward_weights_.reorder.run(context_.stream);
    forward_.run(context_.stream);
  }

  void backward() override {
    gradient_.run(context_.stream);
    gradient_weights_.reorder.run(context_.stream);
    data_weights_.reorder.run(context_.stream);
    data_.run(context_.stream);
  }

 private:
  Context& context_;
  ReorderedWeights forward_weights_, data_weights_, gradient_weights_;
  Call forward_, data_, gradient_;
};

}  // namespace

std::unique_ptr<Op> make_dense(Context& context, const Binding& binding) {
  return std::make_unique<DenseOp>(context, binding);
}

}  // namespace lpsgd::cpu
