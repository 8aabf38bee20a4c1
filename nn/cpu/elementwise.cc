// Operations that touch every value once: activations, sums, and the order of a flattened image.
#include <cmath>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

/// Pointers moved to a thread's part. Small, so that a step allocates nothing.
class Terms {
 public:
  Terms(const Context& context, std::vector<const float*> terms)
      : terms_(std::move(terms)), moved_(static_cast<std::size_t>(context.threads), terms_) {}
  const float* const* at(int thread, std::int64_t offset) {
    std::vector<const float*>& out = moved_[static_cast<std::size_t>(thread)];
    for (std::size_t i = 0; i < terms_.size(); ++i) out[i] = terms_[i] + offset;
    return out.data();
  }
  int count() const { return static_cast<int>(terms_.size()); }

 private:
  std::vector<const float*> terms_;
  std::vector<std::vector<const float*>> moved_;
};

std::vector<const float*> input_values(const Binding& b) {
  std::vector<const float*> out;
  for (const InputView& in : b.inputs) out.push_back(in.value);
  return out;
}

class ReluOp final : public Op {
 public:
  ReluOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        inputs_(context, input_values(b)),
        gradients_(context, b.output_gradients) {}
  void forward(const Pass&) override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.sum(inputs_.at(t, first), 1, b_.output + first, last - first, true);
    });
  }
  void backward() override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.masked_sum(gradients_.at(t, first), gradients_.count(), b_.output + first,
                            b_.inputs[0].gradient + first, last - first);
    });
  }

 private:
  Context& context_;
  Binding b_;
  Terms inputs_, gradients_;
};

/// Tanh, with derivative 1 - y^2, or the logistic sigmoid, with y - y^2.
class SmoothOp final : public Op {
 public:
  SmoothOp(Context& context, const Binding& b, Activation kind)
      : context_(context), b_(b), tanh_(kind == Activation::tanh) {}
  void forward(const Pass&) override {
    const float* x = b_.inputs[0].value;
    context_.parallel(b_.elements(), [&](int, std::int64_t first, std::int64_t last) {
      (tanh_ ? context_.k.tanh : context_.k.sigmoid)(x + first, b_.output + first, last - first);
    });
  }
  void backward() override {
    float* dx = b_.inputs[0].gradient;
    context_.parallel(b_.elements(), [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        float g = b_.output_gradients[0][i];
        for (std::size_t j = 1; j < b_.output_gradients.size(); ++j) g += b_.output_gradients[j][i];
        const float y = b_.output[i];
        dx[i] = g * ((tanh_ ? 1.0f : y) - y * y);
      }
    });
  }

 private:
  Context& context_;
  Binding b_;
  bool tanh_;
};

class AddOp final : public Op {
 public:
  AddOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        inputs_(context, input_values(b)),
        gradients_(context, b.output_gradients) {}
  void forward(const Pass&) override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.sum(inputs_.at(t, first), inputs_.count(), b_.output + first, last - first, b_.relu);
    });
  }
  void backward() override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.masked_sum(gradients_.at(t, first), gradients_.count(),
                            b_.relu ? b_.output + first : nullptr, b_.masked + first, last - first);
    });
  }

 private:
  Context& context_;
  Binding b_;
  Terms inputs_, gradients_;
};

class SumOp final : public Op {
 public:
  SumOp(Context& context, float* into, std::vector<const float*> terms, const float* mask, std::int64_t n)
      : context_(context), into_(into), terms_(context, std::move(terms)), mask_(mask), n_(n) {}
  void forward(const Pass&) override {
    context_.parallel(n_, [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.masked_sum(terms_.at(t, first), terms_.count(), mask_ ? mask_ + first : nullptr,
                            into_ + first, last - first);
    });
  }
  void backward() override { forward({}); }

 private:
  Context& context_;
  float* into_;
  Terms terms_;
  const float* mask_;
  std::int64_t n_;
};

class ChannelsFirstOp final : public Op {
 public:
  ChannelsFirstOp(Context& context, const Binding& b) : context_(context), b_(b) {
    const Shape& in = b.inputs[0].shape;
    pixels_ = in[0] * in[1];
    channels_ = in[2];
  }
  void forward(const Pass&) override {
    each([&](std::int64_t nhwc, std::int64_t nchw) { b_.output[nchw] = b_.inputs[0].value[nhwc]; });
  }
  void backward() override {
    if (!b_.inputs[0].gradient) return;
    each([&](std::int64_t nhwc, std::int64_t nchw) {
      b_.inputs[0].gradient[nhwc] = b_.output_gradients[0][nchw];
    });
  }

 private:
  template <class Move>
  void each(const Move& move) const {
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n)
        for (std::int64_t p = 0; p < pixels_; ++p)
          for (std::int64_t c = 0; c < channels_; ++c)
            move((n * pixels_ + p) * channels_ + c, (n * channels_ + c) * pixels_ + p);
    });
  }

  Context& context_;
  Binding b_;
  std::int64_t pixels_ = 0, channels_ = 0;
};

}  // namespace

std::unique_ptr<Op> make_activation(Context& context, const Binding& binding, Activation kind) {
  if (kind == Activation::relu) return std::make_unique<ReluOp>(context, binding);
  return std::make_unique<SmoothOp>(context, binding, kind);
}

std::unique_ptr<Op> make_add(Context& context, const Binding& binding) {
  return std::make_unique<AddOp>(context, binding);
}

std::unique_ptr<Op> make_sum(Context& context, float* into, std::vector<const float*> terms,
                             const float* mask, std::int64_t n) {
  return std::make_unique<SumOp>(context, into, std::move(terms), mask, n);
}

std::unique_ptr<Op> make_channels_first(Context& context, const Binding& binding) {
  return std::make_unique<ChannelsFirstOp>(context, binding);
}

}  // namespace lpsgd::cpu
