// Dropout (nn/dropout.h). Backward draws once more what forward has drawn.
#include <algorithm>
#include <array>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class DropoutOp final : public Op {
 public:
  DropoutOp(Context& context, const Binding& b, double probability)
      : context_(context),
        k_(context.k.of<T>()),
        b_(b),
        per_sample_(b.elements() / b.batch),
        draws_(b.random, probability),
        gradients_(context, b.output_gradients) {}

  void forward(const Pass& pass) override {
    const T* x = as<T>(b_.inputs[0].value);
    T* y = as<T>(b_.output);
    if (!pass.training || !b_.training) {
      if (x != y) std::copy_n(x, b_.elements(), y);
      return;
    }
    step_ = pass.step;
    first_ = draws_.first + static_cast<std::uint32_t>(pass.first);
    over_parts([&](int, std::int64_t at, std::int64_t count, const float* factors) {
      const T* const term = x + at;
      k_.drop(factors, &term, 1, y + at, count);
    });
  }

  void backward() override {
    T* const dx = as<T>(b_.inputs[0].gradient);
    if (!dx) return;
    over_parts([&](int thread, std::int64_t at, std::int64_t count, const float* factors) {
      k_.drop(factors, gradients_.at(thread, at), gradients_.count(), dx + at, count);
    });
  }

  bool recomputes_kept() const override { return true; }

 private:
  /// Calls body(thread, first value, number of values, their factors) for parts of all samples.
  template <class Body>
  void over_parts(const Body& body) {
    context_.parallel(b_.batch, [&](int thread, std::int64_t first, std::int64_t last) {
      std::array<float, 1024> factors;
      constexpr auto at_once = static_cast<std::int64_t>(factors.size());
      for (std::int64_t n = first; n < last; ++n)
        for (std::int64_t e = 0; e < per_sample_; e += at_once) {
          const std::int64_t count = std::min(at_once, per_sample_ - e);
          context_.k.dropout_factors(draws_, static_cast<std::uint32_t>(e / 4),
                                     first_ + static_cast<std::uint32_t>(n), step_, count, factors.data());
          body(thread, n * per_sample_ + e, count, factors.data());
        }
    });
  }

  Context& context_;
  const ActivationKernels<T>& k_;
  Binding b_;
  std::int64_t per_sample_;
  DropoutDraws draws_;
  Terms<T> gradients_;
  std::uint32_t step_ = 0, first_ = 0;  // of the last pass of training: step, position of its first sample
};

}  // namespace

std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<DropoutOp<T>>(context, binding, probability);
  });
}

}  // namespace lpsgd::cpu
