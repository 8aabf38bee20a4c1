// Max and average pooling: PyTorch's MaxPool2d and AvgPool2d. With ceil_mode the last window may hang over
// the border, but starts inside the input or its left padding.
#include <fmt/core.h>

#include "nn/layer.h"
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
    return out;
  }
  std::int64_t kept_bytes() const override { return desc_.kind == PoolDesc::Kind::max ? 2 * elements_ : 0; }

  bool can_write_columns() const override { return true; }
  bool backward_reads_input() const override { return false; }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.pool(binding, desc_);
  }

 private:
  PoolDesc desc_{.kernel = {0, 0}, .stride = {0, 0}, .pad = {0, 0}};
  bool ceil_mode_ = false;
  std::int64_t elements_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_max_pool_layer() {
  return std::make_unique<PoolLayer>(PoolDesc::Kind::max);
}

std::unique_ptr<Layer> make_average_pool_layer() {
  return std::make_unique<PoolLayer>(PoolDesc::Kind::average);
}

}  // namespace lpsgd
