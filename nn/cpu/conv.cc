// Convolution by oneDNN: direct, or as matrix products. Activations stay NHWC.
// Weights are reordered once in each pass into the layout that the primitive prefers, because oneDNN 2.6 has
// only slow convolutions for O-H-W-I weights. The weights' gradient is reordered back.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "nn/cpu/context.h"
#include "nn/cpu/im2col_products.h"
#include "nn/cpu/winograd_conv.h"

namespace lpsgd::cpu {
namespace {

using dnnl::memory;
using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;

memory::desc activations(std::int64_t batch, const Shape& shape, DataType type) {
  return {{batch, shape[2], shape[0], shape[1]}, dnnl_type(type), memory::format_tag::nhwc};
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

/// oneDNN 2.6's strided 1x1 convolutions need a scratchpad for rows of input pixels. It is too small for
/// fewer channels than a vector has: they write behind it, and into each other's with several threads.
template <class Descriptor>
Descriptor avoid_strided_1x1(Descriptor chosen, const ConvDesc& desc, std::int64_t channels) {
  constexpr std::int64_t longest_vector = 16;
  const bool strided = desc.stride.h > 1 || desc.stride.w > 1;
  if (desc.kernel.h * desc.kernel.w > 1 || !strided || channels >= longest_vector) return chosen;
  while (std::string_view(chosen.impl_info_str()).find("1x1") != std::string_view::npos)
    if (!chosen.next_impl()) throw DeviceError("oneDNN has no usable convolution of one pixel with a stride");
  return chosen;
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
    const memory::desc src = activations(b.batch, in.shape, b.type),
                       dst = activations(b.batch, b.shape, b.type);
    const Plan plan = make(desc, dims, bias, src, dst);

    const ParameterView& w = b.parameters[0];
    const memory weights = view(context, plain, w.value), input = view(context, src, in.value);
    forward_weights_ = to_preferred(context, weights, plan.forward.weights_desc());
    forward_ = {Forward(plan.forward),
                {{DNNL_ARG_SRC, input},
                 {DNNL_ARG_WEIGHTS, forward_weights_.preferred},
                 {DNNL_ARG_DST, view(context, dst, b.output)},
                 {DNNL_ARG_SCRATCHPAD, context.scratchpad(plan.forward.scratchpad_desc())}}};
    if (desc.bias) forward_.arguments[DNNL_ARG_BIAS] = view(context, bias, b.parameters[1].value);
    if (!b.training) return;

    const memory output_gradient = view(context, dst, b.output_gradients[0]);
    if (plan.data) {
      data_weights_ = to_preferred(context, weights, plan.data.weights_desc());
      data_ = {BackwardData(plan.data),
               {{DNNL_ARG_DIFF_DST, output_gradient},
                {DNNL_ARG_WEIGHTS, data_weights_.preferred},
                {DNNL_ARG_DIFF_SRC, view(context, src, in.gradient)},
                {DNNL_ARG_SCRATCHPAD, context.scratchpad(plan.data.scratchpad_desc())}}};
    }
    if (products_) return;
    filters_ = {desc.filters * desc.kernel.h, desc.kernel.w, inner};
    for (std::int64_t x = 0; x < desc.kernel.w; ++x)
      if (!is_read(desc, x)) unread_columns_.push_back(x);
    // The gradient of the weights is no longer needed in this layout when the weights are reordered, so the
    // two share a buffer.
    gradient_weights_ =
        from_preferred(context, view(context, plain, w.gradient), plan.gradient.diff_weights_desc());
    gradient_ = {BackwardWeights(plan.gradient),
                 {{DNNL_ARG_SRC, input},
                  {DNNL_ARG_DIFF_DST, output_gradient},
                  {DNNL_ARG_DIFF_WEIGHTS, gradient_weights_.preferred},
                  {DNNL_ARG_SCRATCHPAD, context.scratchpad(plan.gradient.scratchpad_desc())}}};
    if (desc.bias) gradient_.arguments[DNNL_ARG_DIFF_BIAS] = view(context, bias, b.parameters[1].gradient);
  }

  void forward(const Pass&) override {
    if (products_ && products_->has_forward()) return products_->forward();
    forward_weights_.reorder.run(context_.stream);
    forward_.run(context_.stream);
  }

  void backward() override {
    if (products_) products_->weight_gradient();
    gradient_.run(context_.stream);
    gradient_weights_.reorder.run(context_.stream);
    clear_unread_columns();
    data_weights_.reorder.run(context_.stream);
    data_.run(context_.stream);
  }

 private:
  Plan make(const ConvDesc& desc, const memory::dims& dims, const memory::desc& bias, const memory::desc& src,
            const memory::desc& dst) const {
    const InputView& in = b_.inputs[0];
    const memory::desc any(dims, dnnl_type(b_.type), memory::format_tag::any);
    const memory::desc any_gradient(dims, f32, memory::format_tag::any);
    const memory::dims stride{desc.stride.h, desc.stride.w};
    const memory::dims pad{desc.pad.h, desc.pad.w};
    // The padding on the right is chosen so that oneDNN's output has our size. Rows that no window reads
    // count as negative padding.
    const memory::dims pad_r{(b_.shape[0] - 1) * desc.stride.h + desc.kernel.h - in.shape[0] - desc.pad.h,
                             (b_.shape[1] - 1) * desc.stride.w + desc.kernel.w - in.shape[1] - desc.pad.w};
    const dnnl::engine& engine = context_.engine;
    const dnnl::primitive_attr attr = user_scratchpad();
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const auto kind = b_.training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const auto safe = [&](auto chosen) {
      return avoid_strided_1x1(std::move(chosen), desc, in.shape[2] / desc.groups);
    };
    Plan plan;
    plan.forward = safe(Forward::primitive_desc({kind, algorithm, src, any, bias, dst, stride, pad, pad_r},
                                                user_scratchpad(b_.relu), engine));
    if (!b_.training) return plan;
    if (!products_)
      plan.gradient = safe(BackwardWeights::primitive_desc(
          {algorithm, src, any_gradient, bias, dst, stride, pad, pad_r}, attr, engine, plan.forward));
    if (in.gradient)
      plan.data = safe(BackwardData::primitive_desc({algorithm, src, any, dst, stride, pad, pad_r}, attr,
                                                    engine, plan.forward));
    return plan;
  }

  /// Whether a window's column `x` lies on the image anywhere.
  bool is_read(const ConvDesc& desc, std::int64_t x) const {
    for (std::int64_t out = 0; out < b_.shape[1]; ++out) {
      const std::int64_t at = out * desc.stride.w + x - desc.pad.w;
      if (at >= 0 && at < b_.inputs[0].shape[1]) return true;
    }
    return false;
  }

  /// With bfloat16 and a stride oneDNN 2.6 leaves their gradients as they are in memory.
  void clear_unread_columns() const {
    if (unread_columns_.empty()) return;
    for (std::int64_t row = 0; row < filters_.rows; ++row)
      for (const std::int64_t x : unread_columns_)
        std::fill_n(b_.parameters[0].gradient + (row * filters_.width + x) * filters_.inner, filters_.inner,
                    0.0f);
  }

  Context& context_;
  Binding b_;
  struct {
    std::int64_t rows = 0, width = 0, inner = 0;  // of all filters, in memory: (rows, width, inner)
  } filters_;
  std::vector<std::int64_t> unread_columns_;  // of the kernel: only padding lies below them
  Reordered forward_weights_, data_weights_, gradient_weights_;
  Call forward_, data_, gradient_;
  std::optional<Im2colProducts> products_;
};

}  // namespace

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  if (product_is_profitable(binding, desc))
    return rowwise_is_profitable(binding, desc) ? make_pixel_conv(context, binding)
                                                : make_dense(context, binding);
  if (winograd_is_profitable(binding, desc)) return make_winograd_conv(context, binding, desc);
  return std::make_unique<ConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cpu
