// Positions, class tokens and the selection of a frame.
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

std::size_t bytes_of(std::int64_t values, DataType type) {
  return static_cast<std::size_t>(values * size_of(type));
}

void* offset(void* array, std::int64_t values, DataType type) {
  return static_cast<std::byte*>(array) + values * size_of(type);
}
const void* offset(const void* array, std::int64_t values, DataType type) {
  return static_cast<const std::byte*>(array) + values * size_of(type);
}

class PositionOp final : public Op {
 public:
  PositionOp(Context& context, const Binding& b) : context_(context), b_(b), size_(b.elements() / b.batch) {
    if (!b.training) return;
    cut_ = cut_rows(b.type, b.batch, size_);
    partials_ = context.partials<double>(cut_);
  }
  void forward(const Pass&) override {
    check(launch_position(b_.type, b_.inputs[0].value, b_.parameters[0].value, b_.output, b_.batch, size_,
                          context_.handle()));
  }
  void backward() override {
    const void* dy = b_.output_gradients[0];
    void* dx = b_.inputs[0].gradient;
    const ParameterView& table = b_.parameters[0];
    if (table.gradient != nullptr) {
      check(launch_column_sums(b_.type, dy, cut_, partials_, table.gradient, nullptr, context_.handle()));
      if (const std::int64_t unused = table.info->elements - size_; unused > 0)
        zero_bytes(table.gradient + size_, bytes_of(unused, DataType::f32), context_.stream);
    }
    if (dx) copy_bytes(dx, dy, bytes_of(b_.elements(), b_.type), context_.stream);
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t size_;  // values of a sample
  Cut cut_;
  double* partials_ = nullptr;
};

class ClassTokenOp final : public Op {
 public:
  ClassTokenOp(Context& context, const Binding& b)
      : context_(context), b_(b), width_(b.shape[1]), size_(b.shape[0] * width_) {}
  void forward(const Pass&) override {
    check(
        launch_token(b_.type, b_.parameters[0].value, b_.output, b_.batch, size_, width_, context_.handle()));
    check(launch_copy_rows(b_.type, b_.inputs[0].value, size_ - width_, offset(b_.output, width_, b_.type),
                           size_, b_.batch, size_ - width_, context_.handle()));
  }
  void backward() override {
    const void* dy = b_.output_gradients[0];
    check(launch_token_gradient(b_.type, dy, b_.parameters[0].gradient, b_.batch, size_, width_,
                                context_.handle()));
    if (void* dx = b_.inputs[0].gradient)
      check(launch_copy_rows(b_.type, offset(dy, width_, b_.type), size_, dx, size_ - width_, b_.batch,
                             size_ - width_, context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t width_, size_;  // values of a frame, and of a sample of the output
};

class SelectFrameOp final : public Op {
 public:
  SelectFrameOp(Context& context, const Binding& b, std::int64_t index)
      : context_(context),
        b_(b),
        width_(b.shape[0]),
        size_(b.inputs[0].shape[0] * width_),
        at_(index * width_) {}
  void forward(const Pass&) override {
    check(launch_copy_rows(b_.type, offset(b_.inputs[0].value, at_, b_.type), size_, b_.output, width_,
                           b_.batch, width_, context_.handle()));
  }
  void backward() override {
    void* dx = b_.inputs[0].gradient;
    if (dx == nullptr) return;
    zero_bytes(dx, bytes_of(b_.batch * size_, b_.type), context_.stream);
    check(launch_copy_rows(b_.type, b_.output_gradients[0], width_, offset(dx, at_, b_.type), size_, b_.batch,
                           width_, context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t width_, size_, at_;  // values of a frame, of a sample of the input, and before the frame
};

}  // namespace

std::unique_ptr<Op> make_position(Context& context, const Binding& binding) {
  return std::make_unique<PositionOp>(context, binding);
}

std::unique_ptr<Op> make_class_token(Context& context, const Binding& binding) {
  return std::make_unique<ClassTokenOp>(context, binding);
}

std::unique_ptr<Op> make_select_frame(Context& context, const Binding& binding, std::int64_t index) {
  return std::make_unique<SelectFrameOp>(context, binding, index);
}

}  // namespace lpsgd::cuda
