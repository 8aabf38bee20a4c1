// Local response normalisation. Backward computes the sums of the windows again, which is cheaper than to
// keep them.
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class LrnOp final : public Op {
 public:
  LrnOp(Context& context, const Binding& b, const LrnDesc& desc)
      : context_(context), b_(b), channels_(b.shape.back()), pixels_(b.elements() / channels_) {
    // All channels lie in a window of twice as many.
    constants_ = {std::min(desc.size, 2 * channels_),
                  static_cast<float>(desc.alpha / static_cast<double>(desc.size)),
                  static_cast<float>(desc.beta), static_cast<float>(desc.k)};
    for (int t = 0; t < context.threads; ++t)
      scratch_.emplace_back(static_cast<std::size_t>(4 * channels_ + 4 * constants_.size));
  }

  void forward(const Pass&) override {
    context_.parallel(pixels_, [&](int thread, std::int64_t first, std::int64_t last) {
      const std::int64_t at = first * channels_;
      context_.k.of<T>().lrn(as<T>(b_.inputs[0].value) + at, as<T>(b_.output) + at, last - first, channels_,
                             constants_, scratch(thread));
    });
  }

  void backward() override {
    if (!b_.inputs[0].gradient) return;
    context_.parallel(pixels_, [&](int thread, std::int64_t first, std::int64_t last) {
      const std::int64_t at = first * channels_;
      context_.k.of<T>().lrn_gradient(as<T>(b_.output_gradients[0]) + at, as<T>(b_.inputs[0].value) + at,
                                      as<T>(b_.inputs[0].gradient) + at, last - first, channels_, constants_,
                                      scratch(thread));
    });
  }

 private:
  float* scratch(int thread) { return scratch_[static_cast<std::size_t>(thread)].data(); }

  Context& context_;
  Binding b_;
  std::int64_t channels_, pixels_;
  LrnConstants constants_{};
  std::vector<Buffer<float>> scratch_;
};

}  // namespace

std::unique_ptr<Op> make_lrn(Context& context, const Binding& binding, const LrnDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<LrnOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
