// Layer normalisation. Each row is read from memory once in forward and once in backward, with its gradient;
// further passes over it find it in the caches. The gradients of weight and bias are summed by each thread
// over its rows, then over threads, in their order.
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class LayerNormOp final : public Op {
 public:
  LayerNormOp(Context& context, const Binding& b, const LayerNormDesc& desc)
      : context_(context),
        b_(b),
        width_(b.shape.back()),
        rows_(b.elements() / width_),
        no_bias_(static_cast<std::size_t>(desc.bias ? 0 : width_)),
        constants_{b.parameters[0].value, desc.bias ? b.parameters[1].value : no_bias_.data(),
                   static_cast<float>(desc.eps)} {
    if (!b.training) return;
    mean_ = Buffer<float>(static_cast<std::size_t>(rows_));
    scale_ = Buffer<float>(static_cast<std::size_t>(rows_));
    for (int t = 0; t < context.threads; ++t) sums_.emplace_back(static_cast<std::size_t>(2 * width_));
  }

  void forward(const Pass&) override {
    context_.parallel(rows_, [&](int, std::int64_t first, std::int64_t last) {
      const std::int64_t at = first * width_;
      context_.k.of<T>().layer_norm(as<T>(b_.inputs[0].value) + at, as<T>(b_.output) + at, last - first,
                                    width_, constants_, b_.training ? mean_.data() + first : nullptr,
                                    b_.training ? scale_.data() + first : nullptr);
    });
  }

  void backward() override {
    for (Buffer<float>& sums : sums_) std::fill(sums.begin(), sums.end(), 0.0f);
    context_.parallel(rows_, [&](int thread, std::int64_t first, std::int64_t last) {
      const std::int64_t at = first * width_;
      float* const sums = sums_[static_cast<std::size_t>(thread)].data();
      T* const dx = as<T>(b_.inputs[0].gradient);
      context_.k.of<T>().layer_norm_gradient(as<T>(b_.output_gradients[0]) + at,
                                             as<T>(b_.inputs[0].value) + at, dx ? dx + at : nullptr,
                                             last - first, width_, constants_.weight, mean_.data() + first,
                                             scale_.data() + first, sums, sums + width_);
    });
    for (std::size_t p = 0; p < b_.parameters.size(); ++p) {
      float* const gradient = b_.parameters[p].gradient;
      const std::int64_t first = static_cast<std::int64_t>(p) * width_;
      std::copy_n(sums_[0].data() + first, width_, gradient);
      for (std::size_t t = 1; t < sums_.size(); ++t)
        for (std::int64_t c = 0; c < width_; ++c)
          gradient[c] += sums_[t][static_cast<std::size_t>(first + c)];
    }
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t width_, rows_;
  Buffer<float> no_bias_;  // zeros, if there is none
  LayerNormConstants constants_;
  Buffer<float> mean_, scale_;       // of each row
  std::vector<Buffer<float>> sums_;  // of each thread: the gradients of weight and bias
};

}  // namespace

std::unique_ptr<Op> make_layer_norm(Context& context, const Binding& binding, const LayerNormDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<LayerNormOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
