// Convolutions of single pixels: matrix products over the rows of NHWC.
#include "core/error.h"
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
        rows_per_part_(context.rows_per_part(rows_, out_)) {}

  void forward(const Pass&) override {
    sgemm(rows_, out_, in_, {as<float>(b_.inputs[0].value), in_}, {b_.parameters[0].value, in_, true},
          as<float>(b_.output), out_);
  }

  void backward() override {
    if (rows_done_ == 0) {
      const float* dy = as<float>(b_.output_gradients[0]);
      for (std::int64_t row = 0; row < rows_; row += rows_per_part_)
        backward_rows(row, std::min(row + rows_per_part_, rows_), dy + row * out_);
    }
    require(rows_done_ == rows_, "a convolution gets the gradients of all rows");
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
  Binding b_;
  std::int64_t in_, out_, rows_, rows_per_part_;
  std::int64_t rows_done_ = 0;  // of this step's backward
};

}  // namespace

std::unique_ptr<Op> make_pixel_conv(Context& context, const Binding& binding) {
  return std::make_unique<PixelConvOp>(context, binding);
}

}  // namespace lpsgd::cpu
