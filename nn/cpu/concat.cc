// Concatenation of channels: copies the pixels of each input to their columns of the output, and back, unless
// they lie there already.
#include "nn/concat_parts.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class ConcatOp final : public Op {
 public:
  ConcatOp(Context& context, const Binding& b)
      : context_(context),
        parts_(concat_parts(b)),
        output_(as<T>(b.output)),
        gradient_(b.output_gradients.empty() ? nullptr : as<T>(b.output_gradients[0])),
        width_(b.shape.back()),
        pixels_(b.elements() / width_) {}

  void forward(const Pass&) override {
    each(parts_.forward, [this](const ConcatPart& part, std::int64_t pixel, std::int64_t at) {
      std::copy_n(as<T>(part.value) + pixel * part.width, part.width, output_ + at);
    });
  }
  void backward() override {
    each(parts_.backward, [this](const ConcatPart& part, std::int64_t pixel, std::int64_t at) {
      std::copy_n(gradient_ + at, part.width, as<T>(part.gradient) + pixel * part.width);
    });
  }

 private:
  /// Calls body(part, pixel, the part's place in the output).
  template <class Body>
  void each(const std::vector<ConcatPart>& parts, const Body& body) const {
    if (parts.empty()) return;
    context_.parallel(pixels_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t p = first; p < last; ++p)
        for (const ConcatPart& part : parts) body(part, p, p * width_ + part.column);
    });
  }

  Context& context_;
  ConcatParts parts_;
  T* output_;
  const T* gradient_;
  std::int64_t width_, pixels_;
};

}  // namespace

std::unique_ptr<Op> make_concat(Context& context, const Binding& binding) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<ConcatOp<T>>(context, binding);
  });
}

}  // namespace lpsgd::cpu
