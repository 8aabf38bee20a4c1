// Dropout. Value e of the sample at position p of the global batch is kept when its draw, word e mod 4 of
// Philox block (e / 4, p, step, layer), is at least probability * 2^32; so masks do not depend on ranks
// or threads.
#include <cmath>

#include "core/philox.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class DropoutOp final : public Op {
 public:
  DropoutOp(Context& context, const Binding& b, double probability)
      : context_(context),
        b_(b),
        per_sample_(b.elements() / b.batch),
        limit_(static_cast<std::uint32_t>(std::floor(probability * 0x1p32))),
        scale_(static_cast<float>(1 / (1 - probability))) {
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
      for (std::int64_t n = first; n < last; ++n) {
        const auto position = static_cast<std::uint32_t>(b_.random.first + pass.first + n);
        for (std::int64_t e = 0; e < per_sample_; e += 4) {
          const Philox4x32 draw =
              philox4x32(static_cast<std::uint32_t>(e / 4), position, pass.step, b_.random.layer,
                         b_.random.seed, static_cast<std::uint32_t>(RandomUse::dropout));
          const std::int64_t at = n * per_sample_ + e;
          for (std::int64_t i = 0; i < std::min<std::int64_t>(4, per_sample_ - e); ++i) {
            const bool keep = draw.x[i] >= limit_;
            kept_[static_cast<std::size_t>(at + i)] = keep;
            y[at + i] = narrow<T>(keep ? widen(x[at + i]) * scale_ : 0.0f);
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
        dx[i] = narrow<T>(kept_[static_cast<std::size_t>(i)] ? g * scale_ : 0.0f);
      }
    });
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t per_sample_;
  std::uint32_t limit_;
  float scale_;
  Buffer<std::uint8_t> kept_;
};

}  // namespace

std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<DropoutOp<T>>(context, binding, probability);
  });
}

}  // namespace lpsgd::cpu
