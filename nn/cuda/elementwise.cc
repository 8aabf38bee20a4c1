// Operations that read and write every value once: activations, sums, products, concatenation, and the order
// of a flattened image.
#include "nn/concat_parts.h"
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

std::vector<const void*> input_values(const Binding& b) {
  std::vector<const void*> out;
  for (const InputView& in : b.inputs) out.push_back(in.value);
  return out;
}

/// into = the sum of any number of terms, which may be masked. Many terms take several launches.
class Sum {
 public:
  Sum(Context& context, DataType type, void* into, const std::vector<const void*>& terms, const void* mask,
      bool relu, std::int64_t n)
      : context_(context), type_(type), into_(into), mask_(mask), relu_(relu), n_(n) {
    for (const void* term : terms) {
      if (parts_.empty() || parts_.back().count == max_terms) {
        parts_.emplace_back();
        if (parts_.size() > 1) add(into);
      }
      add(term);
    }
  }
  void run() const {
    for (const Terms& part : parts_) {
      const bool last = &part == &parts_.back();
      check(launch_sum(type_, into_, part, last ? mask_ : nullptr, last && relu_, n_, context_.handle()));
    }
  }

 private:
  void add(const void* term) { parts_.back().at[parts_.back().count++] = term; }

  Context& context_;
  DataType type_;
  void* into_;
  const void* mask_;
  bool relu_;
  std::int64_t n_;
  std::vector<Terms> parts_;
};

class SumOp final : public OwnMemoryOp {
 public:
  /// One of the two may be empty, if only the other pass is needed.
  SumOp(std::optional<Sum> forward, std::optional<Sum> backward)
      : forward_(std::move(forward)), backward_(std::move(backward)) {}
  void forward(const Pass&) override { forward_->run(); }
  void backward() override { backward_->run(); }

 private:
  std::optional<Sum> forward_, backward_;
};

class ScaleOp final : public OwnMemoryOp {
 public:
  ScaleOp(Context& context, const Binding& b, double factor)
      : context_(context),
        b_(b),
        factor_(static_cast<float>(factor)),
        input_(terms_of(input_values(b))),
        gradients_(terms_of(b.output_gradients)) {}
  void forward(const Pass&) override { run(input_, b_.output); }
  void backward() override { run(gradients_, b_.inputs[0].gradient); }

 private:
  void run(const Terms& terms, void* into) {
    check(launch_scaled_sum(b_.type, into, terms, factor_, b_.elements(), context_.handle()));
  }

  Context& context_;
  Binding b_;
  float factor_;
  Terms input_, gradients_;
};

class ActivationOp final : public OwnMemoryOp {
 public:
  ActivationOp(Context& context, const Binding& b, Activation kind)
      : context_(context),
        b_(b),
        kind_(kind),
        at_(gradient_reads_output(kind) ? b.output : b.inputs[0].value),
        gradients_(terms_of(b.output_gradients)) {}
  void forward(const Pass&) override {
    check(launch_activation(b_.type, kind_, b_.inputs[0].value, b_.output, b_.elements(), context_.handle()));
  }
  void backward() override {
    check(launch_activation_gradient(b_.type, kind_, gradients_, at_, b_.inputs[0].gradient, b_.elements(),
                                     context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  Activation kind_;
  const void* at_;
  Terms gradients_;
};

class MultiplyOp final : public OwnMemoryOp {
 public:
  MultiplyOp(Context& context, const Binding& b) : context_(context), b_(b) {
    shape_.batch = b.batch;
    shape_.channels = elements_of(b.inputs[1].shape).value_or(0);
    shape_.pixels = elements_of(b.shape).value_or(0) / shape_.channels;
  }
  void forward(const Pass&) override {
    check(launch_multiply(b_.type, shape_, b_.inputs[0].value, b_.inputs[1].value, b_.output,
                          context_.handle()));
  }
  void backward() override {
    check(launch_multiply_gradient(b_.type, shape_, b_.output_gradients[0], b_.inputs[0].value,
                                   b_.inputs[1].value, b_.inputs[0].gradient, b_.inputs[1].gradient,
                                   context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  GateShape shape_;
};

class ConcatOp final : public OwnMemoryOp {
 public:
  ConcatOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        parts_(concat_parts(b)),
        width_(b.shape.back()),
        rows_(b.elements() / width_) {}

  void forward(const Pass&) override {
    for (const ConcatPart& part : parts_.forward)
      check(launch_copy_rows(b_.type, part.value, part.width, moved(b_.output, part.column), width_, rows_,
                             part.width, context_.handle()));
  }
  void backward() override {
    for (const ConcatPart& part : parts_.backward)
      check(launch_copy_rows(b_.type, moved(b_.output_gradients[0], part.column), width_, part.gradient,
                             part.width, rows_, part.width, context_.handle()));
  }

 private:
  std::int64_t bytes(std::int64_t values) const { return values * size_of(b_.type); }
  void* moved(void* p, std::int64_t values) const { return static_cast<std::byte*>(p) + bytes(values); }
  const void* moved(const void* p, std::int64_t values) const {
    return static_cast<const std::byte*>(p) + bytes(values);
  }

  Context& context_;
  Binding b_;
  ConcatParts parts_;
  std::int64_t width_, rows_;
};

class ChannelsFirstOp final : public OwnMemoryOp {
 public:
  ChannelsFirstOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        pixels_(b.inputs[0].shape[0] * b.inputs[0].shape[1]),
        channels_(b.inputs[0].shape[2]) {}
  void forward(const Pass&) override {
    check(launch_transpose(b_.type, b_.inputs[0].value, b_.output, b_.batch, pixels_, channels_,
                           context_.handle()));
  }
  void backward() override {
    if (b_.inputs[0].gradient)
      check(launch_transpose(b_.type, b_.output_gradients[0], b_.inputs[0].gradient, b_.batch, channels_,
                             pixels_, context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t pixels_, channels_;
};

}  // namespace

std::unique_ptr<Op> make_activation(Context& context, const Binding& b, Activation kind) {
  if (kind != Activation::relu) return std::make_unique<ActivationOp>(context, b, kind);
  std::optional<Sum> backward;
  if (b.training && b.inputs[0].gradient)
    backward.emplace(context, b.type, b.inputs[0].gradient, b.output_gradients, b.output, false,
                     b.elements());
  return std::make_unique<SumOp>(Sum(context, b.type, b.output, input_values(b), nullptr, true, b.elements()),
                                 std::move(backward));
}

std::unique_ptr<Op> make_add(Context& context, const Binding& b) {
  std::optional<Sum> backward;
  if (b.training && b.masked)
    backward.emplace(context, b.type, b.masked, b.output_gradients, b.relu ? b.output : nullptr, false,
                     b.elements());
  return std::make_unique<SumOp>(
      Sum(context, b.type, b.output, input_values(b), nullptr, b.relu, b.elements()), std::move(backward));
}

std::unique_ptr<Op> make_multiply(Context& context, const Binding& b) {
  return std::make_unique<MultiplyOp>(context, b);
}

std::unique_ptr<Op> make_scale(Context& context, const Binding& b, double factor) {
  return std::make_unique<ScaleOp>(context, b, factor);
}

std::unique_ptr<Op> make_sum(Context& context, DataType type, void* into,
                             const std::vector<const void*>& terms, const void* mask, std::int64_t elements) {
  return std::make_unique<SumOp>(std::nullopt, Sum(context, type, into, terms, mask, false, elements));
}

std::unique_ptr<Op> make_concat(Context& context, const Binding& binding) {
  return std::make_unique<ConcatOp>(context, binding);
}

std::unique_ptr<Op> make_channels_first(Context& context, const Binding& binding) {
  return std::make_unique<ChannelsFirstOp>(context, binding);
}

}  // namespace lpsgd::cuda
