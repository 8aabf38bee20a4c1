// Convolutions of single pixels: products over the rows of NHWC.
#include "nn/cpu/context.h"
#include "nn/cpu/sgemm.h"

namespace lpsgd::cpu {
namespace {

class PixelConvOp final : public RowwiseOp {
 public:
  PixelConvOp(const Context& context, const Binding& b)
      : b_(b),
        in_(b.inputs[0].shape.back()),
        out_(b.shape.back()),
        rows_(b.elements() / out_),
        part_(std::clamp<std::int64_t>(
            context.threads * cached_bytes / (out_ * static_cast<std::int64_t>(sizeof(float))), 1, rows_)) {}

  void forward(const Pass& pass) override {
    constexpr std::int64_t least_rows = 256;  // products of fewer are slower by more than parts gain
    const bool parts = sink_ && pass.training && part_ >= least_rows;
    each_part(parts ? part_ : rows_, [&](std::int64_t first, std::int64_t last) {
      sgemm(last - first, out_, in_, {as<float>(b_.inputs[0].value) + first * in_, in_},
            {b_.parameters[0].value, in_, true}, as<float>(b_.output) + first * out_, out_);
      if (parts) sink_->rows_written(first, last);
    });
  }

  void backward() override {
    if (rows_done_ == 0) {
      const float* dy = as<float>(b_.output_gradients[0]);
      each_part(part_, [&](std::int64_t first, std::int64_t last) {
        backward_rows(first, last, dy + first * out_);
      });
    }
    rows_done_ = 0;
  }

  void backward_rows(std::int64_t first, std::int64_t last, const float* dy) override {
    const std::int64_t rows = last - first;
    sgemm(out_, in_, rows, {dy, out_, true}, {as<float>(b_.inputs[0].value) + first * in_, in_},
          b_.parameters[0].gradient, in_, rows_done_ > 0);
    if (auto* dx = as<float>(b_.inputs[0].gradient))
      sgemm(rows, in_, out_, {dy, out_}, {b_.parameters[0].value, in_}, dx + first * in_, in_);
    rows_done_ += rows;
  }

 private:
  template <class Body>
  void each_part(std::int64_t part, const Body& body) const {
    for (std::int64_t row = 0; row < rows_; row += part) body(row, std::min(row + part, rows_));
  }

  Binding b_;
  std::int64_t in_, out_, rows_, part_;
  std::int64_t rows_done_ = 0;  // of this step's backward
};

}  // namespace

std::unique_ptr<Op> make_pixel_conv(Context& context, const Binding& binding) {
  return std::make_unique<PixelConvOp>(context, binding);
}

}  // namespace lpsgd::cpu
