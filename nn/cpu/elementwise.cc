// Operations that read and write every value once: activations, sums, products, and the order of a flattened
// image.
#include <algorithm>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

std::vector<const void*> input_values(const Binding& b) {
  std::vector<const void*> out;
  for (const InputView& in : b.inputs) out.push_back(in.value);
  return out;
}

/// Any activation but ReLU, which is a sum of one term.
template <class T>
class ActivationOp final : public Op {
 public:
  ActivationOp(Context& context, const Binding& b, Activation kind)
      : context_(context),
        b_(b),
        forward_(context.k.of<T>().activation[static_cast<std::size_t>(kind)]),
        backward_(context.k.of<T>().activation_gradient[static_cast<std::size_t>(kind)]),
        at_(as<T>(gradient_reads_output(kind) ? b.output : b.inputs[0].value)),
        gradients_(context, b.output_gradients) {}
  void forward(const Pass&) override {
    context_.parallel(b_.elements(), [&](int, std::int64_t first, std::int64_t last) {
      forward_(as<T>(b_.inputs[0].value) + first, as<T>(b_.output) + first, last - first);
    });
  }
  void backward() override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      backward_(gradients_.at(t, first), gradients_.count(), at_ + first,
                as<T>(b_.inputs[0].gradient) + first, last - first);
    });
  }

 private:
  Context& context_;
  Binding b_;
  typename ActivationKernels<T>::ActivationKernel forward_;
  typename ActivationKernels<T>::ActivationGradientKernel backward_;
  const T* at_;  // the output or the input
  Terms<T> gradients_;
};

/// A sample of the first input is rows that are each multiplied by the same values: an image's pixels by a
/// gate. Of two inputs of one shape it is a single row.
template <class T>
class MultiplyOp final : public Op {
 public:
  MultiplyOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        k_(context.k.of<T>()),
        width_(elements_of(b.inputs[1].shape).value_or(0)),
        rows_(elements_of(b.shape).value_or(0) / width_),
        sums_(b.training && rows_ > 1 ? static_cast<std::size_t>(context.threads * width_) : 0) {}
  void forward(const Pass&) override { multiply(b_.inputs[0].value, b_.inputs[1].value, b_.output); }
  void backward() override {
    const void* g = b_.output_gradients[0];
    if (b_.inputs[0].gradient) multiply(g, b_.inputs[1].value, b_.inputs[0].gradient);
    if (!b_.inputs[1].gradient) return;
    if (rows_ == 1) return multiply(g, b_.inputs[0].value, b_.inputs[1].gradient);
    samples([&](int t, std::int64_t n) {
      float* const sum = sums_.data() + t * width_;
      std::fill_n(sum, width_, 0.0f);
      k_.add_products(as<T>(g) + n * rows_ * width_, as<T>(b_.inputs[0].value) + n * rows_ * width_, rows_,
                      width_, sum);
      k_.narrow(sum, as<T>(b_.inputs[1].gradient) + n * width_, width_);
    });
  }

 private:
  void multiply(const void* x, const void* factor, void* out) {
    samples([&](int, std::int64_t n) {
      const std::int64_t at = n * rows_ * width_;
      k_.multiply(as<T>(x) + at, as<T>(factor) + n * width_, as<T>(out) + at, rows_, width_);
    });
  }
  template <class Body>
  void samples(const Body& body) {
    context_.parallel(b_.batch, [&](int t, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) body(t, n);
    });
  }

  Context& context_;
  Binding b_;
  const ActivationKernels<T>& k_;
  std::int64_t width_, rows_;
  Buffer<float> sums_;  // of each thread
};

template <class T>
class AddOp final : public Op {
 public:
  AddOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        inputs_(context, input_values(b)),
        gradients_(context, b.output_gradients) {}
  void forward(const Pass&) override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.of<T>().sum(inputs_.at(t, first), inputs_.count(), as<T>(b_.output) + first, last - first,
                             b_.relu);
    });
  }
  void backward() override {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.of<T>().masked_sum(gradients_.at(t, first), gradients_.count(),
                                    b_.relu ? as<T>(b_.output) + first : nullptr, as<T>(b_.masked) + first,
                                    last - first);
    });
  }

 private:
  Context& context_;
  Binding b_;
  Terms<T> inputs_, gradients_;
};

template <class T>
class ScaleOp final : public Op {
 public:
  ScaleOp(Context& context, const Binding& b, double factor)
      : context_(context),
        b_(b),
        factor_(static_cast<float>(factor)),
        inputs_(context, input_values(b)),
        gradients_(context, b.output_gradients) {}
  void forward(const Pass&) override { run(inputs_, as<T>(b_.output)); }
  void backward() override { run(gradients_, as<T>(b_.inputs[0].gradient)); }

 private:
  void run(Terms<T>& terms, T* into) {
    context_.parallel(b_.elements(), [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.of<T>().scaled_sum(terms.at(t, first), terms.count(), factor_, into + first, last - first);
    });
  }

  Context& context_;
  Binding b_;
  float factor_;
  Terms<T> inputs_, gradients_;
};

template <class T>
class SumOp final : public Op {
 public:
  SumOp(Context& context, void* into, const std::vector<const void*>& terms, const void* mask, std::int64_t n)
      : context_(context), into_(as<T>(into)), terms_(context, terms), mask_(as<T>(mask)), n_(n) {}
  void forward(const Pass&) override {
    context_.parallel(n_, [&](int t, std::int64_t first, std::int64_t last) {
      context_.k.of<T>().masked_sum(terms_.at(t, first), terms_.count(), mask_ ? mask_ + first : nullptr,
                                    into_ + first, last - first);
    });
  }
  void backward() override { forward({}); }

 private:
  Context& context_;
  T* into_;
  Terms<T> terms_;
  const T* mask_;
  std::int64_t n_;
};

template <class T>
class ChannelsFirstOp final : public Op {
 public:
  ChannelsFirstOp(Context& context, const Binding& b) : context_(context), b_(b) {
    const Shape& in = b.inputs[0].shape;
    pixels_ = in[0] * in[1];
    channels_ = in[2];
  }
  void forward(const Pass&) override {
    T* to = as<T>(b_.output);
    const T* from = as<T>(b_.inputs[0].value);
    each([&](std::int64_t nhwc, std::int64_t nchw) { to[nchw] = from[nhwc]; });
  }
  void backward() override {
    if (!b_.inputs[0].gradient) return;
    T* to = as<T>(b_.inputs[0].gradient);
    const T* from = as<T>(b_.output_gradients[0]);
    each([&](std::int64_t nhwc, std::int64_t nchw) { to[nhwc] = from[nchw]; });
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
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    if (kind == Activation::relu) {  // a sum of one term
      Binding sum = binding;
      sum.relu = true;
      sum.masked = binding.inputs[0].gradient;
      return std::make_unique<AddOp<T>>(context, sum);
    }
    return std::make_unique<ActivationOp<T>>(context, binding, kind);
  });
}

std::unique_ptr<Op> make_multiply(Context& context, const Binding& binding) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<MultiplyOp<T>>(context, binding);
  });
}

std::unique_ptr<Op> make_add(Context& context, const Binding& binding) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<AddOp<T>>(context, binding);
  });
}

std::unique_ptr<Op> make_scale(Context& context, const Binding& binding, double factor) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<ScaleOp<T>>(context, binding, factor);
  });
}

std::unique_ptr<Op> make_sum(Context& context, DataType type, void* into, std::vector<const void*> terms,
                             const void* mask, std::int64_t n) {
  return with_type(type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<SumOp<T>>(context, into, terms, mask, n);
  });
}

std::unique_ptr<Op> make_channels_first(Context& context, const Binding& binding) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<ChannelsFirstOp<T>>(context, binding);
  });
}

}  // namespace lpsgd::cpu
