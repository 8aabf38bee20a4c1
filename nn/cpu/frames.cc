// Positions, class tokens and the selection of a frame.
#include <utility>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

/// y = x + the table's first rows, on each sample.
template <class T>
class PositionOp final : public Op {
 public:
  PositionOp(Context& context, const Binding& b) : context_(context), b_(b), size_(b.elements() / b.batch) {}

  void forward(const Pass&) override {
    const float* const table = b_.parameters[0].value;
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) {
        const T* const x = as<T>(b_.inputs[0].value) + n * size_;
        T* const y = as<T>(b_.output) + n * size_;
        for (std::int64_t i = 0; i < size_; ++i) y[i] = narrow<T>(widen(x[i]) + table[i]);
      }
    });
  }

  void backward() override {
    const T* const dy = as<T>(b_.output_gradients[0]);
    T* const dx = as<T>(b_.inputs[0].gradient);
    if (float* const gradient = b_.parameters[0].gradient) {
      context_.parallel(size_, [&](int, std::int64_t first, std::int64_t last) {
        std::fill(gradient + first, gradient + last, 0.0f);
        context_.k.of<T>().add_rows(dy + first, b_.batch, size_, last - first, gradient + first);
      });
      std::fill(gradient + size_, gradient + b_.parameters[0].info->elements, 0.0f);
    }
    if (dx == nullptr) return;
    context_.parallel(b_.elements(), [&](int, std::int64_t first, std::int64_t last) {
      std::copy(dy + first, dy + last, dx + first);
    });
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t size_;  // values of a sample
};

template <class T>
class ClassTokenOp final : public Op {
 public:
  ClassTokenOp(Context& context, const Binding& b)
      : context_(context), b_(b), width_(b.shape[1]), size_(b.inputs[0].shape[0] * width_) {}

  void forward(const Pass&) override {
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) {
        T* const y = as<T>(b_.output) + n * (width_ + size_);
        context_.k.of<T>().narrow(b_.parameters[0].value, y, width_);
        std::copy_n(as<T>(b_.inputs[0].value) + n * size_, size_, y + width_);
      }
    });
  }

  void backward() override {
    const T* const dy = as<T>(b_.output_gradients[0]);
    float* const gradient = b_.parameters[0].gradient;
    std::fill_n(gradient, width_, 0.0f);
    context_.k.of<T>().add_rows(dy, b_.batch, width_ + size_, width_, gradient);
    T* const dx = as<T>(b_.inputs[0].gradient);
    if (dx == nullptr) return;
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n)
        std::copy_n(dy + n * (width_ + size_) + width_, size_, dx + n * size_);
    });
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t width_, size_;  // values of a frame, and of a sample of the input
};

template <class T>
class SelectFrameOp final : public Op {
 public:
  SelectFrameOp(Context& context, const Binding& b, std::int64_t index)
      : context_(context),
        b_(b),
        width_(b.shape[0]),
        size_(b.inputs[0].shape[0] * width_),
        offset_(index * width_) {}

  void forward(const Pass&) override {
    for (std::int64_t n = 0; n < b_.batch; ++n)
      std::copy_n(as<T>(b_.inputs[0].value) + n * size_ + offset_, width_, as<T>(b_.output) + n * width_);
  }

  void backward() override {
    T* const dx = as<T>(b_.inputs[0].gradient);
    if (dx == nullptr) return;
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      std::fill(dx + first * size_, dx + last * size_, T{});
      for (std::int64_t n = first; n < last; ++n)
        std::copy_n(as<T>(b_.output_gradients[0]) + n * width_, width_, dx + n * size_ + offset_);
    });
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t width_, size_, offset_;  // values of a frame, of a sample, and before the frame
};

template <template <class> class Operation, class... Arguments>
std::unique_ptr<Op> make(Context& context, const Binding& binding, Arguments... arguments) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<Operation<T>>(context, binding, arguments...);
  });
}

}  // namespace

std::unique_ptr<Op> make_position(Context& context, const Binding& binding) {
  return make<PositionOp>(context, binding);
}
std::unique_ptr<Op> make_class_token(Context& context, const Binding& binding) {
  return make<ClassTokenOp>(context, binding);
}
std::unique_ptr<Op> make_select_frame(Context& context, const Binding& binding, std::int64_t index) {
  return make<SelectFrameOp>(context, binding, index);
}

}  // namespace lpsgd::cpu
