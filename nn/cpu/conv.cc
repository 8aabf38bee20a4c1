// Convolution by oneDNN. Activations stay NHWC; weights are reordered once a pass into the layout that the
// primitive prefers (with plain O-H-W-I weights oneDNN 2.6 falls to a slow path), and their gradient back.
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

using dnnl::memory;

memory::desc nhwc(std::int64_t batch, const Shape& shape, DataType type) {
  return {{batch, shape[2], shape[0], shape[1]}, dnnl_type(type), memory::format_tag::nhwc};
}

class ConvOp final : public Op {
 public:
  ConvOp(Context& context, const Binding& b, const ConvDesc& desc) : context_(context) {
    const InputView& in = b.inputs[0];
    const memory::desc src = nhwc(b.batch, in.shape, b.type), dst = nhwc(b.batch, b.shape, b.type);
    const std::int64_t inner = in.shape[2] / desc.groups;
    const memory::dims dims =
        desc.groups == 1
            ? memory::dims{desc.filters, inner, desc.kernel.h, desc.kernel.w}
            : memory::dims{desc.groups, desc.filters / desc.groups, inner, desc.kernel.h, desc.kernel.w};
    const memory::desc plain(dims, f32,
                             desc.groups == 1 ? memory::format_tag::ohwi : memory::format_tag::gohwi);
    const memory::desc any(dims, dnnl_type(b.type), memory::format_tag::any);
    const memory::desc any_gradient(dims, f32, memory::format_tag::any);
    const memory::desc bias =
        desc.bias ? memory::desc({desc.filters}, f32, memory::format_tag::a) : memory::desc();
    const memory::dims stride{desc.stride.h, desc.stride.w};
    const memory::dims pad{desc.pad.h, desc.pad.w};
    // The right border is what makes oneDNN's output size come out as ours: rows that no window reaches count
    // as negative padding.
    const memory::dims pad_r{(b.shape[0] - 1) * desc.stride.h + desc.kernel.h - in.shape[0] - desc.pad.h,
                             (b.shape[1] - 1) * desc.stride.w + desc.kernel.w - in.shape[1] - desc.pad.w};
    const dnnl::primitive_attr attr = user_scratchpad();
    const auto algorithm = dnnl::algorithm::convolution_direct;

    const ParameterView& w = b.parameters[0];
    const memory src_memory = view(context, src, in.value);
    const memory weights = view(context, plain, w.value);
    const dnnl::convolution_forward::primitive_desc forward(
        {b.training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference, algorithm, src,
         any, bias, dst, stride, pad, pad_r},
        user_scratchpad(b.relu), context.engine);
    // One copy serves both passes where both like the same layout.
    dnnl::convolution_backward_data::primitive_desc data;
    if (b.training && in.gradient)
      data = {{algorithm, src, any, dst, stride, pad, pad_r}, attr, context.engine, forward};
    const bool shared = data && data.weights_desc() == forward.weights_desc();
    forward_weights_ = (shared ? to_kept : to_preferred)(context, weights, forward.weights_desc());
    forward_ = {dnnl::convolution_forward(forward),
                {{DNNL_ARG_SRC, src_memory},
                 {DNNL_ARG_WEIGHTS, forward_weights_.preferred},
                 {DNNL_ARG_DST, view(context, dst, b.output)},
                 {DNNL_ARG_SCRATCHPAD, context.scratchpad(forward.scratchpad_desc())}}};
    if (desc.bias) forward_.arguments[DNNL_ARG_BIAS] = view(context, bias, b.parameters[1].value);
    if (!b.training) return;

    const memory diff_dst = view(context, dst, b.output_gradients[0]);
    if (data) {
      data_weights_ = shared ? ReorderedWeights{forward_weights_.preferred, {}}
                             : to_preferred(context, weights, data.weights_desc());
      data_ = {dnnl::convolution_backward_data(data),
               {{DNNL_ARG_DIFF_DST, diff_dst},
                {DNNL_ARG_WEIGHTS, data_weights_.preferred},
                {DNNL_ARG_DIFF_SRC, view(context, src, in.gradient)},
                {DNNL_ARG_SCRATCHPAD, context.scratchpad(data.scratchpad_desc())}}};
    }
    const dnnl::convolution_backward_weights::primitive_desc gradient(
        {algorithm, src, any_gradient, bias, dst, stride, pad, pad_r}, attr, context.engine, forward);
    gradient_weights_ =
        from_preferred(context, view(context, plain, w.gradient), gradient.diff_weights_desc());
    gradient_ = {dnnl::convolution_backward_weights(gradient),
                 {{DNNL_ARG_SRC, src_memory},
                  {DNNL_ARG_DIFF_DST, diff_dst},
                  {DNNL_ARG_DIFF_WEIGHTS, gradient_weights_.preferred},
                  {DNNL_ARG_SCRATCHPAD, context.scratchpad(gradient.scratchpad_desc())}}};
    if (desc.bias) gradient_.arguments[DNNL_ARG_DIFF_BIAS] = view(context, bias, b.parameters[1].gradient);
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

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  return std::make_unique<ConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cpu
