// Embedding: rows of a table by number. The gradient is dense, as every other one. Rows without a token have
// 0.
#include <fmt/format.h>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class EmbeddingOp final : public Op {
 public:
  EmbeddingOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        width_(b.shape.back()),
        vocabulary_(b.parameters[0].info->shape[0]),
        tokens_(static_cast<std::size_t>(b.elements() / width_)) {}

  void forward(const Pass&) override {
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const float x = as<float>(b_.inputs[0].value)[i];
      if (!(x >= 0 && x < static_cast<float>(vocabulary_)))
        throw Error(fmt::format("a token is {}, but the vocabulary has {} words", x, vocabulary_));
      tokens_[i] = static_cast<std::int64_t>(x);
      context_.k.of<T>().narrow(b_.parameters[0].value + tokens_[i] * width_,
                                as<T>(b_.output) + static_cast<std::int64_t>(i) * width_, width_);
    }
  }

  void backward() override {
    float* dw = b_.parameters[0].gradient;
    if (!b_.parameters[0].adds)
      context_.parallel(vocabulary_ * width_, [&](int, std::int64_t first, std::int64_t last) {
        std::fill(dw + first, dw + last, 0.0f);
      });
    context_.parallel(width_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const T* g = as<T>(b_.output_gradients[0]) + static_cast<std::int64_t>(i) * width_;
        float* row = dw + tokens_[i] * width_;
        for (std::int64_t c = first; c < last; ++c) row[c] += widen(g[c]);
      }
    });
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t width_, vocabulary_;
  std::vector<std::int64_t> tokens_;
};

}  // namespace

std::unique_ptr<Op> make_embedding(Context& context, const Binding& binding) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<EmbeddingOp<T>>(context, binding);
  });
}

}  // namespace lpsgd::cpu
