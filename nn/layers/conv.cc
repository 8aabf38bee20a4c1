// Convolution: (H, W, I) to (H', W', O), H' = (H + 2 pad - kernel) / stride + 1. Weights O-H-W-(I / groups).
#include <fmt/core.h>

#include <utility>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class ConvLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("filters", desc_.filters, "output channels", {.min = 1, .max = max_option});
    v.required();
    size_field(v, "kernel", desc_.kernel, "window", {.min = 1, .max = max_option});
    size_field(v, "stride", desc_.stride, "step of the window", {.min = 1, .max = max_option});
    size_field(v, "pad", desc_.pad, "zeros added on each side", {.min = 0, .max = max_option});
    v.field("groups", desc_.groups, "groups of channels that do not mix", {.min = 1, .max = max_option});
    v.field("bias", desc_.bias, "add a trained bias to each output channel");
    init_.fields(v);
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = image(inputs);
    init_.check();
    channels_ = in[2];
    if (channels_ % desc_.groups != 0 || desc_.filters % desc_.groups != 0)
      throw LayerError(fmt::format("{} groups do not divide {} input channels and {} filters", desc_.groups,
                                   channels_, desc_.filters));
    const auto extent = [&](std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
      if (kernel > size + 2 * pad)
        throw LayerError(fmt::format("kernel {}x{} with pad {}x{} is larger than the input {}",
                                     desc_.kernel.h, desc_.kernel.w, desc_.pad.h, desc_.pad.w,
                                     shape_text(in)));
      return (size + 2 * pad - kernel) / stride + 1;
    };
    out_ = {extent(in[0], desc_.kernel.h, desc_.stride.h, desc_.pad.h),
            extent(in[1], desc_.kernel.w, desc_.stride.w, desc_.pad.w), desc_.filters};
    return out_;
  }

  std::vector<ParameterSpec> parameters() const override {
    const std::int64_t window = desc_.kernel.h * desc_.kernel.w;
    const std::int64_t inner = channels_ / desc_.groups;
    std::vector<ParameterSpec> out{{"weight",
                                    TensorKind::conv,
                                    {desc_.filters, inner, desc_.kernel.h, desc_.kernel.w},
                                    init_.weights(he_normal(desc_.filters * window))}};
    if (desc_.bias)
      out.push_back({"bias", TensorKind::bias, {desc_.filters}, init_.biases(uniform_over(inner * window))});
    return out;
  }

  std::int64_t flops() const override {
    const std::int64_t pixels = out_[0] * out_[1] * desc_.filters;
    return 2 * pixels * (channels_ / desc_.groups) * desc_.kernel.h * desc_.kernel.w +
           (desc_.bias ? pixels : 0);
  }

  bool can_fuse(Epilogue epilogue) const override { return !epilogue.residual; }
  bool accepts_gradient_rows() const override { return desc_.is_product() && !desc_.bias; }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.conv(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override {
    std::vector<OperatorWriter::Value> in{out.input(), out.tensor("weight")};
    if (desc_.bias) in.push_back(out.tensor("bias"));
    const Size2 k = desc_.kernel, s = desc_.stride, p = desc_.pad;
    out.output(out.add("Conv", std::move(in),
                       {{"group", desc_.groups},
                        {"kernel_shape", std::vector{k.h, k.w}},
                        {"strides", std::vector{s.h, s.w}},
                        {"pads", std::vector{p.h, p.w, p.h, p.w}}}));
  }

 private:
  InitOptions init_;
  ConvDesc desc_{.kernel = {1, 1}, .stride = {1, 1}, .pad = {0, 0}};
  std::int64_t channels_ = 0;
  Shape out_;
};

}  // namespace

std::unique_ptr<Layer> make_conv_layer() {
  return std::make_unique<ConvLayer>();
}

}  // namespace lpsgd
