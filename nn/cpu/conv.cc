// Convolution by oneDNN: direct, by Winograd's algorithm, or as matrix products. Activations stay NHWC.
// Weights are reordered once in each pass into the layout that the primitive prefers, because oneDNN 2.6 has
// only slow convolutions for O-H-W-I weights. The weights' gradient is reordered back.
#include <optional>

#include "nn/cpu/context.h"
#include "nn/cpu/im2col_products.h"
#include "nn/cpu/winograd_conv.h"

namespace lpsgd::cpu {
namespace {

using dnnl::memory;
using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;

memory::desc activations(std::int64_t batch, const Shape& shape, DataType type, memory::format_tag layout) {
  return {{batch, shape[2], shape[0], shape[1]}, dnnl_type(type), layout};
}

/// Whether oneDNN's Winograd is faster than its direct convolution. It has a quarter of the multiplications,
/// but transforms whole tiles and reorders the activations into blocks of channels.
bool winograd_is_profitable(const Binding& b, const ConvDesc& desc) {
  return suits_winograd(b, desc) &&
         std::min(b.inputs[0].shape[2], desc.filters) >= onednn_winograd_min_channels;
}

/// oneDNN 2.6's matrix products are up to a quarter faster than its 1x1 convolutions over NHWC, mostly for
/// the gradient of the weights, and need no copy of the weights.
bool product_is_profitable(const Binding& b, const ConvDesc& desc) {
  return b.type == DataType::f32 && desc.is_product();
}

/// Whether the output of such a product is so large that backward is faster in parts.
bool rowwise_is_profitable(const Binding& b, const ConvDesc& desc) {
  constexpr std::int64_t min_bytes = std::int64_t{4} << 20, min_channels = 64;
  return !desc.bias && !b.relu && b.training && std::min(b.shape[2], b.inputs[0].shape[2]) >= min_channels &&
         b.elements() * static_cast<std::int64_t>(sizeof(float)) >= min_bytes;
}

/// The primitives of one layer. `data` is empty if the gradient of the input is not needed, and `gradient` if
/// matrix products compute the gradient of the weights.
struct Plan {
  Forward::primitive_desc forward;
  BackwardData::primitive_desc data;
  BackwardWeights::primitive_desc gradient;
};

class ConvOp final : public Op {
 public:
  ConvOp(Context& context, const Binding& b, const ConvDesc& desc) : context_(context), b_(b) {
    const InputView& in = b.inputs[0];
    const std::int64_t inner = in.shape[2] / desc.groups;
    const memory::dims dims =
        desc.groups == 1
            ? memory::dims{desc.filters, inner, desc.kernel.h, desc.kernel.w}
            : memory::dims{desc.groups, desc.filters / desc.groups, inner, desc.kernel.h, desc.kernel.w};
    const memory::desc plain(dims, f32,
                             desc.groups == 1 ? memory::format_tag::ohwi : memory::format_tag::gohwi);
    const memory::desc bias =
        desc.bias ? memory::desc({desc.filters}, f32, memory::format_tag::a) : memory::desc();
    if (Im2colProducts::is_profitable(b, desc)) products_.emplace(context, b, desc);
    Plan plan;
    bool made = false;
    if (winograd_is_profitable(b, desc)) {
      parts_ = parts_of(b);
      made = make(plan, b, desc, dims, bias, dnnl::algorithm::convolution_winograd);
    }
    if (!made) {
      parts_ = 1;
      make(plan, b, desc, dims, bias, dnnl::algorithm::convolution_direct);
    }

    const std::int64_t samples = b.batch / parts_;
    const memory::desc nhwc_in = activations(samples, in.shape, b.type, memory::format_tag::nhwc),
                       nhwc_out = activations(samples, b.shape, b.type, memory::format_tag::nhwc);
    in_bytes_ = static_cast<std::int64_t>(nhwc_in.get_size());
    out_bytes_ = static_cast<std::int64_t>(nhwc_out.get_size());
    const ParameterView& w = b.parameters[0];
    const memory weights = view(context, plain, w.value);
    input_ =
        to_preferred(context, view(context, nhwc_in, in.value), plan.forward.src_desc(), ReorderUse::input);
    output_ = from_preferred(context, view(context, nhwc_out, b.output), plan.forward.dst_desc(),
                             ReorderUse::output);
    forward_weights_ = to_preferred(context, weights, plan.forward.weights_desc());
    forward_ = {Forward(plan.forward),
                {{DNNL_ARG_SRC, input_.preferred},
                 {DNNL_ARG_WEIGHTS, forward_weights_.preferred},
                 {DNNL_ARG_DST, output_.preferred},
                 {DNNL_ARG_SCRATCHPAD, context.scratchpad(plan.forward.scratchpad_desc())}}};
    if (desc.bias) forward_.arguments[DNNL_ARG_BIAS] = view(context, bias, b.parameters[1].value);
    if (!b.training) return;

    output_gradient_ =
        to_preferred(context, view(context, nhwc_out, b.output_gradients[0]),
                     plan.gradient ? plan.gradient.diff_dst_desc() : nhwc_out, ReorderUse::output);
    if (plan.data) {
      data_weights_ = to_preferred(context, weights, plan.data.weights_desc());
      input_gradient_ = from_preferred(context, view(context, nhwc_in, in.gradient),
                                       plan.data.diff_src_desc(), ReorderUse::input);
      data_ = {BackwardData(plan.data),
               {{DNNL_ARG_DIFF_DST, output_gradient_.preferred},
                {DNNL_ARG_WEIGHTS, data_weights_.preferred},
                {DNNL_ARG_DIFF_SRC, input_gradient_.preferred},
                {DNNL_ARG_SCRATCHPAD, context.scratchpad(plan.data.scratchpad_desc())}}};
    }
    if (products_) return;
    const memory weight_gradient = view(context, plain, w.gradient);
    // With one part, the gradient of the weights is no longer needed in this layout when the weights are
    // reordered, so the two may share a buffer.
    gradient_weights_ = from_preferred(context, weight_gradient, plan.gradient.diff_weights_desc(),
                                       parts_ == 1 ? ReorderUse::weights : ReorderUse::weight_gradients);
    if (parts_ > 1) add_gradient_ = accumulating(context, gradient_weights_, weight_gradient);
    gradient_ = {BackwardWeights(plan.gradient),
                 {{DNNL_ARG_SRC, input_.preferred},
                  {DNNL_ARG_DIFF_DST, output_gradient_.preferred},
                  {DNNL_ARG_DIFF_WEIGHTS, gradient_weights_.preferred},
                  {DNNL_ARG_SCRATCHPAD, context.scratchpad(plan.gradient.scratchpad_desc())}}};
    if (!desc.bias) return;
    if (parts_ > 1) bias_gradient_ = Buffer<float>(static_cast<std::size_t>(desc.filters));
    gradient_.arguments[DNNL_ARG_DIFF_BIAS] =
        view(context, bias, parts_ > 1 ? bias_gradient_.data() : b.parameters[1].gradient);
  }

  void forward(const Pass&) override {
    if (products_ && products_->has_forward()) return products_->forward();
    forward_weights_.reorder.run(context_.stream);
    for (std::int64_t part = 0; part < parts_; ++part) {
      reorder_from(input_, b_.inputs[0].value, part * in_bytes_);
      forward_.run(context_.stream);
      reorder_to(output_, b_.output, part * out_bytes_);
    }
  }

  void backward() override {
    if (parts_ > 1) data_weights_.reorder.run(context_.stream);
    for (std::int64_t part = 0; part < parts_; ++part) {
      reorder_from(output_gradient_, b_.output_gradients[0], part * out_bytes_);
      reorder_from(input_, b_.inputs[0].value, part * in_bytes_);
      if (products_) products_->weight_gradient();
      gradient_.run(context_.stream);
      (part == 0 ? gradient_weights_.reorder : add_gradient_).run(context_.stream);
      if (bias_gradient_.size() > 0) add_bias_gradient(part == 0);
      if (!data_.primitive) continue;
      if (parts_ == 1) data_weights_.reorder.run(context_.stream);
      data_.run(context_.stream);
      reorder_to(input_gradient_, b_.inputs[0].gradient, part * in_bytes_);
    }
  }

 private:
  /// The number of parts of a batch whose activations are reordered. The copies of a part shall fit in the
  /// cache.
  static std::int64_t parts_of(const Binding& b) {
    constexpr std::int64_t max_copy_bytes = std::int64_t{16} << 20;
    const std::int64_t sample =
        4 * std::max(elements_of(b.inputs[0].shape).value_or(0), elements_of(b.shape).value_or(0));
    std::int64_t parts = 1;
    while (parts < b.batch && (b.batch % parts != 0 || b.batch / parts * sample > max_copy_bytes)) ++parts;
    return b.batch / parts * winograd_tiles(b.shape) < winograd_min_tiles ? 1 : parts;
  }

  static const std::byte* at(const void* values, std::int64_t offset) {
    return static_cast<const std::byte*>(values) + offset;
  }
  void reorder_from(const Reordered& what, const void* from, std::int64_t offset) const {
    if (!what.reorder.primitive) return;
    set_argument(what.reorder, DNNL_ARG_FROM, at(from, offset));
    what.reorder.run(context_.stream);
  }
  void reorder_to(const Reordered& what, const void* to, std::int64_t offset) const {
    if (!what.reorder.primitive) return;
    set_argument(what.reorder, DNNL_ARG_TO, at(to, offset));
    what.reorder.run(context_.stream);
  }

  void add_bias_gradient(bool first) const {
    float* sum = b_.parameters[1].gradient;
    for (std::size_t i = 0; i < bias_gradient_.size(); ++i)
      sum[i] = (first ? 0.0f : sum[i]) + bias_gradient_.data()[i];
  }

  /// False if oneDNN has no such primitive for this processor, or if its passes prefer different layouts.
  bool make(Plan& plan, const Binding& b, const ConvDesc& desc, const memory::dims& dims,
            const memory::desc& bias, dnnl::algorithm algorithm) const {
    const InputView& in = b.inputs[0];
    const bool winograd = algorithm == dnnl::algorithm::convolution_winograd;
    const auto layout = winograd ? memory::format_tag::any : memory::format_tag::nhwc;
    const std::int64_t samples = b.batch / parts_;
    const memory::desc src = activations(samples, in.shape, b.type, layout),
                       dst = activations(samples, b.shape, b.type, layout);
    const memory::desc any(dims, dnnl_type(b.type), memory::format_tag::any);
    const memory::desc any_gradient(dims, f32, memory::format_tag::any);
    const memory::dims stride{desc.stride.h, desc.stride.w};
    const memory::dims pad{desc.pad.h, desc.pad.w};
    // The padding on the right is chosen so that oneDNN's output has our size. Rows that no window reads
    // count as negative padding.
    const memory::dims pad_r{(b.shape[0] - 1) * desc.stride.h + desc.kernel.h - in.shape[0] - desc.pad.h,
                             (b.shape[1] - 1) * desc.stride.w + desc.kernel.w - in.shape[1] - desc.pad.w};
    const dnnl::engine& engine = context_.engine;
    const dnnl::primitive_attr attr = user_scratchpad();
    // For inference, Winograd's algorithm prefers a layout of transformed weights, which only oihw can be
    // reordered to.
    const auto kind =
        b.training || winograd ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    plan.forward = Forward::primitive_desc({kind, algorithm, src, any, bias, dst, stride, pad, pad_r},
                                           user_scratchpad(b.relu), engine, winograd);
    if (!plan.forward) return false;
    if (!b.training) return true;
    if (!products_)
      plan.gradient =
          BackwardWeights::primitive_desc({algorithm, src, any_gradient, bias, dst, stride, pad, pad_r}, attr,
                                          engine, plan.forward, winograd);
    if (in.gradient)
      plan.data = BackwardData::primitive_desc({algorithm, src, any, dst, stride, pad, pad_r}, attr, engine,
                                               plan.forward, winograd);
    if (products_) return true;
    return plan.gradient && plan.gradient.src_desc() == plan.forward.src_desc() &&
           (!in.gradient || (plan.data && plan.data.diff_dst_desc() == plan.gradient.diff_dst_desc()));
  }

  Context& context_;
  Binding b_;
  std::int64_t parts_ = 1, in_bytes_ = 0, out_bytes_ = 0;  // of a part
  Reordered input_, output_, input_gradient_, output_gradient_;
  Reordered forward_weights_, data_weights_, gradient_weights_;
  Call forward_, data_, gradient_, add_gradient_;
  Buffer<float> bias_gradient_;  // of a part, where there are several
  std::optional<Im2colProducts> products_;
};

}  // namespace

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  if (product_is_profitable(binding, desc))
    return rowwise_is_profitable(binding, desc) ? make_pixel_conv(context, binding)
                                                : make_dense(context, binding);
  if (own_winograd_is_profitable(binding, desc)) return make_winograd_conv(context, binding, desc);
  return std::make_unique<ConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cpu
