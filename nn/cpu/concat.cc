// Concatenation of channels: copies the pixels of each input to their part of the output, and back.
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class ConcatOp final : public Op {
 public:
  ConcatOp(Context& context, const Binding& b)
      : context_(context), b_(b), width_(b.shape.back()), pixels_(b.elements() / width_) {}

  void forward(const Pass&) override {
    each_part([&](const InputView& in, std::int64_t p, std::int64_t n, std::int64_t at) {
      std::copy_n(as<T>(in.value) + p * n, n, as<T>(b_.output) + at);
    });
  }
  void backward() override {
    each_part([&](const InputView& in, std::int64_t p, std::int64_t n, std::int64_t at) {
      if (in.gradient) std::copy_n(as<T>(b_.output_gradients[0]) + at, n, as<T>(in.gradient) + p * n);
    });
  }

 private:
  /// Calls body(input, pixel, number of the input's channels, their offset in the output).
  template <class Body>
  void each_part(const Body& body) const {
    context_.parallel(pixels_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p) {
        std::int64_t at = p * width_;
        for (const InputView& in : b_.inputs) {
          const std::int64_t n = in.shape.back();
          body(in, p, n, at);
          at += n;
        }
      }
    });
  }

  Context& context_;
  Binding b_;
  std::int64_t width_, pixels_;
};

}  // namespace

std::unique_ptr<Op> make_concat(Context& context, const Binding& binding) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<ConcatOp<T>>(context, binding);
  });
}

}  // namespace lpsgd::cpu
