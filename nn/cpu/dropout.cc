// Dropout (nn/dropout.h).
#include <algorithm>
#include <array>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class DropoutOp final : public Op {
 public:
  DropoutOp(Context& context, const Binding& b, double probability)
      : context_(context), b_(b), per_sample_(b.elements() / b.batch), draws_(b.random, probability) {
    if (b.training) kept_ = Buffer<std::uint8_t>(static_cast<std::size_t>(b.elements()));
  }

  void forward(const Pass& pass) override {
    const T* x = as<T>(b_.inputs[0].value);
    T* y = as<T>(b_.output);
    if (!pass.training || !b_.training) {
      if (x != y) std::copy_n(x, b_.elements(), y);
      return;
    }
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      std::array<float, 1024> factors;
      constexpr auto at_once = static_cast<std::int64_t>(factors.size());
      for (std::int64_t n = first; n < last; ++n) {
        const std::uint32_t position = draws_.first + static_cast<std::uint32_t>(pass.first + n);
        for (std::int64_t e = 0; e < per_sample_; e += at_once) {
          const std::int64_t count = std::min(at_once, per_sample_ - e), at = n * per_sample_ + e;
          context_.k.dropout_factors(draws_, static_cast<std::uint32_t>(e / 4), position, pass.step, count,
                                     factors.data());
          std::uint8_t* const kept = kept_.data() + at;
          for (std::int64_t i = 0; i < count; ++i) {
            const float factor = factors[static_cast<std::size_t>(i)];
            kept[i] = factor != 0;
            y[at + i] = narrow<T>(factor != 0 ? widen(x[at + i]) * factor : 0.0f);
          }
        }
      }
    });
  }

  void backward() override {
    T* dx = as<T>(b_.inputs[0].gradient);
    if (!dx) return;
    context_.parallel(b_.elements(), [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float g = widen(as<T>(b_.output_gradients[0])[i]);
        for (std::size_t j = 1; j < b_.output_gradients.size(); ++j)
          g += widen(as<T>(b_.output_gradients[j])[i]);
        dx[i] = narrow<T>(kept_[static_cast<std::size_t>(i)] ? g * draws_.scale : 0.0f);
      }
    });
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t per_sample_;
  DropoutDraws draws_;
  Buffer<std::uint8_t> kept_;
};

}  // namespace

std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<DropoutOp<T>>(context, binding, probability);
  });
}

}  // namespace lpsgd::cpu
