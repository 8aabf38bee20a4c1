// An LSTM layer over sequences of different lengths. Rows are ordered by time, then by sample, so that the
// rows of a step are contiguous. Everything that does not depend on the previous step is one matrix product
// over all frames: the part of the gates that comes from the input, and the gradients of the weights. Behind
// the end of a sequence, states, outputs and gradients are 0.
#include "nn/cpu/product.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class LstmOp final : public Op {
 public:
  LstmOp(Context& context, const Binding& b, const LstmDesc& desc)
      : context_(context),
        k_(context.k.of<T>()),
        b_(b),
        cell_(desc.cell),
        width_(b.shape[1]),
        features_(b.inputs[0].shape[1]),
        frames_(b.shape[0]),
        batch_(b.batch),
        projected_(desc.projection > 0),
        bias_(desc.bias),
        from_input_(context,
                    {.rows = rows(),
                     .in = features_,
                     .out = gates(),
                     .type = b.type,
                     .bias = bias_,
                     .data = b.training && b.inputs[0].gradient != nullptr,
                     .gradient = b.training},
                    b.parameters[0].value, bias_ ? sum_of_biases() : nullptr),
        from_state_(context,
                    {.rows = batch_,
                     .in = width_,
                     .out = gates(),
                     .type = b.type,
                     .accumulate = true,
                     .data = b.training},
                    b.parameters[1].value, nullptr) {
    lengths_.assign(static_cast<std::size_t>(batch_), 0);
    inputs_ = Buffer<T>(size(rows() * features_));
    gates_ = Buffer<float>(size(rows() * gates()));
    cells_ = Buffer<float>(size(rows() * cell_));
    hidden_ = Buffer<T>(size(rows() * width_));
    if (projected_) {
      projection_.emplace(
          context,
          ProductDesc{
              .rows = batch_, .in = cell_, .out = width_, .type = b.type, .sums = b.type, .data = b.training},
          projection_weights().value, nullptr);
      outputs_ = Buffer<T>(size(rows() * cell_));
    }
    if (!b.training) return;
    cell_gradient_ = Buffer<float>(size(batch_ * cell_));
    output_gradient_ = Buffer<T>(size(batch_ * cell_));
    hidden_gradients_ = Buffer<T>(size(rows() * width_));
    if constexpr (!std::is_same_v<T, float>) sums_gradients_ = Buffer<T>(size(rows() * gates()));
    if (frames_ > 1)
      state_gradient_.emplace(context,
                              ProductDesc{.rows = rows() - batch_,
                                          .in = width_,
                                          .out = gates(),
                                          .type = b.type,
                                          .forward = false,
                                          .gradient = true},
                              b.parameters[1].value, nullptr);
    if (projected_)
      projection_gradient_.emplace(
          context,
          ProductDesc{
              .rows = rows(), .in = cell_, .out = width_, .type = b.type, .forward = false, .gradient = true},
          projection_weights().value, nullptr);
  }

  void forward(const Pass& pass) override {
    for (std::int64_t n = 0; n < batch_; ++n)
      lengths_[size(n)] = pass.lengths.empty() ? frames_ : pass.lengths[size(n)];
    if (bias_)
      for (std::int64_t i = 0; i < gates(); ++i)
        biases_[size(i)] = b_.parameters[2].value[i] + b_.parameters[3].value[i];
    by_time(as<T>(b_.inputs[0].value), inputs_.data(), features_);
    from_input_.prepare_forward();
    from_input_.forward(inputs_.data(), gates_.data());
    from_state_.prepare_forward();
    if (projected_) projection_->prepare_forward();
    for (std::int64_t t = 0; t < frames_; ++t) {
      if (t > 0) from_state_.forward(hidden_at(t - 1), gates_at(t));
      T* outputs = projected_ ? outputs_.data() + t * batch_ * cell_ : hidden_at(t);
      context_.parallel(batch_, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t n = first; n < last; ++n) {
          float* cells = cells_at(t) + n * cell_;
          if (t < lengths_[size(n)]) {
            k_.lstm_cell(gates_at(t) + n * gates(), t > 0 ? cells - batch_ * cell_ : nullptr, cells,
                         outputs + n * cell_, cell_);
          } else {
            std::fill_n(cells, cell_, 0.0f);
            std::fill_n(outputs + n * cell_, cell_, T{});
          }
        }
      });
      if (projected_) projection_->forward(outputs, hidden_at(t));
    }
    by_sample(hidden_.data(), as<T>(b_.output), width_);
  }

  void backward() override {
    by_time(as<T>(b_.output_gradients[0]), hidden_gradients_.data(), width_);
    std::fill(cell_gradient_.begin(), cell_gradient_.end(), 0.0f);
    from_state_.prepare_input_gradient();
    if (projected_) projection_->prepare_input_gradient();
    for (std::int64_t t = frames_ - 1; t >= 0; --t) {
      T* hidden = hidden_gradients_.data() + t * batch_ * width_;
      if (t + 1 < frames_) {
        // The next step reads this one's state, too.
        from_state_.input_gradient(sums_gradient_at(t + 1), output_gradient_.data());
        const T* terms[2] = {hidden, output_gradient_.data()};
        k_.sum(terms, 2, hidden, batch_ * width_, false);
      }
      const T* outputs = hidden;
      if (projected_) {
        projection_->input_gradient(hidden, output_gradient_.data());
        outputs = output_gradient_.data();
      }
      context_.parallel(batch_, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t n = first; n < last; ++n) {
          T* sums_gradient = sums_gradient_at(t) + n * gates();
          const float* cells = cells_at(t) + n * cell_;
          if (t < lengths_[size(n)])
            k_.lstm_cell_gradient(gates_at(t) + n * gates(), t > 0 ? cells - batch_ * cell_ : nullptr, cells,
                                  outputs + n * cell_, cell_gradient_.data() + n * cell_, sums_gradient,
                                  cell_);
          else
            std::fill_n(sums_gradient, gates(), T{});
        }
      });
    }
    from_input_.weight_gradient(inputs_.data(), sums_gradient_at(0), b_.parameters[0].gradient,
                                bias_ ? b_.parameters[2].gradient : nullptr);
    if (bias_) std::copy_n(b_.parameters[2].gradient, gates(), b_.parameters[3].gradient);
    if (state_gradient_)
      state_gradient_->weight_gradient(hidden_.data(), sums_gradient_at(1), b_.parameters[1].gradient,
                                       nullptr);
    else
      std::fill_n(b_.parameters[1].gradient, gates() * width_, 0.0f);
    if (projected_)
      projection_gradient_->weight_gradient(outputs_.data(), hidden_gradients_.data(),
                                            projection_weights().gradient, nullptr);
    if (!b_.inputs[0].gradient) return;
    from_input_.prepare_input_gradient();
    from_input_.input_gradient(sums_gradient_at(0),
                               inputs_.data());  // the inputs were read for the last time above
    by_sample(inputs_.data(), as<T>(b_.inputs[0].gradient), features_);
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::int64_t rows() const { return frames_ * batch_; }
  std::int64_t gates() const { return 4 * cell_; }
  float* gates_at(std::int64_t t) { return gates_.data() + t * batch_ * gates(); }
  float* cells_at(std::int64_t t) { return cells_.data() + t * batch_ * cell_; }
  /// The gradients of the gates' sums. If they are float32, they overwrite the gates.
  T* sums_gradient_at(std::int64_t t) {
    if constexpr (std::is_same_v<T, float>)
      return gates_at(t);
    else
      return sums_gradients_.data() + t * batch_ * gates();
  }
  T* hidden_at(std::int64_t t) { return hidden_.data() + t * batch_ * width_; }
  const ParameterView& projection_weights() const { return b_.parameters[bias_ ? 4 : 2]; }
  const float* sum_of_biases() {
    biases_ = Buffer<float>(size(gates()));
    return biases_.data();
  }

  /// (sample, time, width) to (time, sample, width); 0 behind a sequence's end.
  void by_time(const T* from, T* to, std::int64_t width) const {
    context_.parallel(rows(), [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t t = r / batch_, n = r % batch_;
        if (t < lengths_[size(n)])
          std::copy_n(from + (n * frames_ + t) * width, width, to + r * width);
        else
          std::fill_n(to + r * width, width, T{});
      }
    });
  }
  void by_sample(const T* from, T* to, std::int64_t width) const {
    context_.parallel(rows(), [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r)
        std::copy_n(from + (r % frames_ * batch_ + r / frames_) * width, width, to + r * width);
    });
  }

  Context& context_;
  const ActivationKernels<T>& k_;
  Binding b_;
  std::int64_t cell_, width_, features_, frames_,
      batch_;  // width: of the state, the cell's or the projection's
  bool projected_, bias_;
  Buffer<float> biases_;  // both vectors' sum; declared before the products that read it
  Product from_input_, from_state_;
  std::optional<Product> projection_, state_gradient_, projection_gradient_;
  std::vector<std::int64_t> lengths_;
  // By time. What a product reads is stored as T; sums, activated gates and cells are float32.
  Buffer<float> gates_, cells_;
  Buffer<T> inputs_, outputs_, hidden_, hidden_gradients_, sums_gradients_;
  Buffer<float> cell_gradient_;  // of one step
  Buffer<T> output_gradient_;
};

}  // namespace

std::unique_ptr<Op> make_lstm(Context& context, const Binding& binding, const LstmDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<LstmOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
