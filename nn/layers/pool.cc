// Max and average pooling: PyTorch's MaxPool2d and AvgPool2d. With ceil_mode the last window may hang over
// the border, but starts inside the input or its left padding.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class PoolLayer final : public Layer {
 public:
  explicit PoolLayer(PoolDesc::Kind kind) { desc_.kind = kind; }

  void fields(config::Visitor& v) override {
    size_field(v, "kernel", desc_.kernel, "window; 0 stands for the whole input (global)",
               {.min = 0, .max = max_option});
    size_field(v, "stride", desc_.stride, "step of the window; 0 stands for the kernel",
               {.min = 0, .max = max_option});
    size_field(v, "pad", desc_.pad, "border on each side, at most half the kernel",
               {.min = 0, .max = max_option});
    v.field("ceil_mode", ceil_mode_, "round the output's size up, so that no input is left out");
    if (desc_.kind == PoolDesc::Kind::average)
      v.field("count_pad", desc_.count_pad, "count the border in the divisor");
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = image(inputs);
    if (desc_.kernel.h == 0) desc_.kernel.h = in[0];
    if (desc_.kernel.w == 0) desc_.kernel.w = in[1];
    if (desc_.stride.h == 0) desc_.stride.h = desc_.kernel.h;
    if (desc_.stride.w == 0) desc_.stride.w = desc_.kernel.w;
    if (desc_.pad.h * 2 > desc_.kernel.h || desc_.pad.w * 2 > desc_.kernel.w)
      throw LayerError(fmt::format("pad {}x{} is more than half the kernel {}x{}", desc_.pad.h, desc_.pad.w,
                                   desc_.kernel.h, desc_.kernel.w));
    const auto extent = [&](std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
      const std::int64_t room = size + 2 * pad - kernel;
      if (room < 0)
        throw LayerError(fmt::format("kernel {}x{} with pad {}x{} is larger than the input {}",
                                     desc_.kernel.h, desc_.kernel.w, desc_.pad.h, desc_.pad.w,
                                     shape_text(in)));
      std::int64_t out = (room + (ceil_mode_ ? stride - 1 : 0)) / stride + 1;
      if (ceil_mode_ && (out - 1) * stride >= size + pad) --out;
      return out;
    };
    Shape out{extent(in[0], desc_.kernel.h, desc_.stride.h, desc_.pad.h),
              extent(in[1], desc_.kernel.w, desc_.stride.w, desc_.pad.w), in[2]};
    elements_ = elements_of(out).value_or(0);
    const auto beyond = [](std::int64_t size, std::int64_t count, std::int64_t kernel, std::int64_t stride,
                           std::int64_t pad) {
      return std::max((count - 1) * stride + kernel - size - 2 * pad, std::int64_t{0});
    };
    overhang_ = {beyond(in[0], out[0], desc_.kernel.h, desc_.stride.h, desc_.pad.h),
                 beyond(in[1], out[1], desc_.kernel.w, desc_.stride.w, desc_.pad.w)};
    return out;
  }
  std::int64_t kept_bytes() const override { return desc_.kind == PoolDesc::Kind::max ? 2 * elements_ : 0; }

  bool can_write_columns() const override { return true; }
  bool backward_reads_input() const override { return false; }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.pool(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override;

 private:
  PoolDesc desc_{.kernel = {0, 0}, .stride = {0, 0}, .pad = {0, 0}};
  bool ceil_mode_ = false;
  Size2 overhang_{0, 0};  // of the last windows over the border
  std::int64_t elements_ = 0;
};

// Runtimes differ in ceil_mode, so the border that its windows hang over is written as padding. It never
// counts in a mean's divisor, while the padding may: then the padding is made of zeros before.
void PoolLayer::write_operators(OperatorWriter& out) const {
  const bool is_max = desc_.kind == PoolDesc::Kind::max;
  const bool hangs_over = overhang_.h > 0 || overhang_.w > 0;
  const bool counts_pad = !is_max && desc_.count_pad && (desc_.pad.h > 0 || desc_.pad.w > 0);
  OperatorWriter::Value in = out.input();
  Size2 pad = desc_.pad;
  if (counts_pad && hangs_over) {
    in = out.add("Pad", {in, out.constant("pads", {0, 0, pad.h, pad.w, 0, 0, pad.h, pad.w})});
    pad = {0, 0};
  }
  OperatorWriter::Attributes attributes{
      {"kernel_shape", std::vector{desc_.kernel.h, desc_.kernel.w}},
      {"strides", std::vector{desc_.stride.h, desc_.stride.w}},
      {"pads", std::vector{pad.h, pad.w, pad.h + overhang_.h, pad.w + overhang_.w}}};
  if (counts_pad && !hangs_over) attributes.emplace_back("count_include_pad", std::int64_t{1});
  out.output(out.add(is_max ? "MaxPool" : "AveragePool", {in}, std::move(attributes)));
}

}  // namespace

std::unique_ptr<Layer> make_max_pool_layer() {
  return std::make_unique<PoolLayer>(PoolDesc::Kind::max);
}

std::unique_ptr<Layer> make_average_pool_layer() {
  return std::make_unique<PoolLayer>(PoolDesc::Kind::average);
}

}  // namespace lpsgd
