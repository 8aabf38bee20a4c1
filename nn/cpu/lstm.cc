// An LSTM layer over sequences of different lengths. Rows are ordered by time, then by sample, so that the
// rows of a frame are contiguous. What does not depend on the previous frame is computed for a chunk of
// frames at once: the part of the gates that comes from the input, and the gradients of the weights. Chunks
// behind the longest sequence of a batch are left out. Behind the end of a sequence, states, outputs and
// gradients are 0.
#include "nn/cpu/product.h"

namespace lpsgd::cpu {
namespace {

/// The frames of a chunk: so many rows that products run at full speed, and few enough that little is
/// computed behind the longest sequence.
std::int64_t frames_of_chunk(std::int64_t frames, std::int64_t batch) {
  constexpr std::int64_t rows = 256;
  const std::int64_t chunks = std::max<std::int64_t>(1, frames * batch / rows);
  return (frames + chunks - 1) / chunks;
}

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
        chunk_(frames_of_chunk(frames_, batch_)),
        from_input_(context,
                    {.rows = chunk_ * batch_,
                     .in = features_,
                     .out = gates(),
                     .type = b.type,
                     .bias = bias_,
                     .data = b.training && b.inputs[0].gradient != nullptr},
                    b.parameters[0].value, bias_ ? sum_of_biases() : nullptr),
        from_state_(context,
                    {.rows = batch_,
                     .in = width_,
                     .out = gates(),
                     .type = b.type,
                     .accumulate = true,
                     .data = b.training,
                     .repeated = true},
                    b.parameters[1].value, nullptr) {
    lengths_.assign(size(batch_), 0);
    inputs_ = Buffer<T>(size(rows() * features_));
    gates_ = Buffer<float>(size(rows() * gates()));
    cells_ = Buffer<float>(size((rows() + batch_) * cell_));
    hidden_ = Buffer<T>(size((rows() + batch_) * width_));
    if (projected_) {
      projection_.emplace(context,
                          ProductDesc{.rows = batch_,
                                      .in = cell_,
                                      .out = width_,
                                      .type = b.type,
                                      .sums = b.type,
                                      .data = b.training,
                                      .repeated = true},
                          projection_weights().value, nullptr);
      outputs_ = Buffer<T>(size(rows() * cell_));
    }
    if (b.training) plan_backward();
  }

  void forward(const Pass& pass) override {
    start(pass);
    by_time(as<T>(b_.inputs[0].value), inputs_.data(), features_);
    from_input_.prepare_forward();
    for (std::int64_t t = 0; t < run_; t += chunk_)
      from_input_.forward(inputs_.data() + t * batch_ * features_, gates_at(t));
    from_state_.prepare_forward();
    if (projected_) projection_->prepare_forward();
    for (std::int64_t t = 0; t < run_; ++t) forward_frame(t);
    by_sample(hidden_at(0), as<T>(b_.output), width_);
    keep_state(pass);
  }

  void backward() override {
    by_time(as<T>(b_.output_gradients[0]), hidden_gradients_.data(), width_);
    std::fill(cell_gradient_.begin(), cell_gradient_.end(), 0.0f);
    from_state_.prepare_input_gradient();
    if (projected_) projection_->prepare_input_gradient();
    for (std::int64_t t = run_ - 1; t >= 0; --t) backward_frame(t);
    add_weight_gradients();
    if (!b_.inputs[0].gradient) return;
    from_input_.prepare_input_gradient();
    for (std::int64_t t = 0; t < run_; t += chunk_)  // the inputs were read for the last time above
      from_input_.input_gradient(sums_gradient_at(t), inputs_.data() + t * batch_ * features_);
    by_sample(inputs_.data(), as<T>(b_.inputs[0].gradient), features_);
  }

 private:
  void plan_backward() {
    cell_gradient_ = Buffer<float>(size(batch_ * cell_));
    output_gradient_ = Buffer<T>(size(batch_ * cell_));
    hidden_gradients_ = Buffer<T>(size(rows() * width_));
    if constexpr (!std::is_same_v<T, float>) sums_gradients_ = Buffer<T>(size(rows() * gates()));
    input_gradient_.emplace(context_, chunk_ * batch_, features_, gates(), b_.type);
    state_gradient_.emplace(context_, chunk_ * batch_, width_, gates(), b_.type);
    if (projected_) projection_gradient_.emplace(context_, chunk_ * batch_, cell_, width_, b_.type);
  }

  /// Sets the lengths of this pass and the states that its sequences start from.
  void start(const Pass& pass) {
    longest_ = 0;
    for (std::int64_t n = 0; n < batch_; ++n) {
      lengths_[size(n)] = pass.length(n, frames_);
      longest_ = std::max(longest_, lengths_[size(n)]);
    }
    run_ = (longest_ + chunk_ - 1) / chunk_ * chunk_;
    if (bias_)
      for (std::int64_t i = 0; i < gates(); ++i)
        biases_[size(i)] = b_.parameters[2].value[i] + b_.parameters[3].value[i];
    const std::vector<float*>& carried = pass.training ? b_.carried : b_.carried_in_evaluation;
    is_continued_ = false;
    for (std::int64_t n = 0; n < batch_; ++n) {
      T* hidden = hidden_at(-1) + n * width_;
      float* cells = cells_at(-1) + n * cell_;
      if (pass.is_continued(n)) {
        is_continued_ = true;
        k_.narrow(carried[0] + n * width_, hidden, width_);
        std::copy_n(carried[1] + n * cell_, cell_, cells);
      } else {
        std::fill_n(hidden, width_, T{});
        std::fill_n(cells, cell_, 0.0f);
      }
    }
  }

  /// Keeps the state after the last frame for the next pass.
  void keep_state(const Pass& pass) {
    const std::vector<float*>& carried = pass.training ? b_.carried : b_.carried_in_evaluation;
    for (std::int64_t n = 0; n < batch_; ++n) {
      if (lengths_[size(n)] == frames_) {
        k_.widen(hidden_at(frames_ - 1) + n * width_, carried[0] + n * width_, width_);
        std::copy_n(cells_at(frames_ - 1) + n * cell_, cell_, carried[1] + n * cell_);
      } else {
        std::fill_n(carried[0] + n * width_, width_, 0.0f);
        std::fill_n(carried[1] + n * cell_, cell_, 0.0f);
      }
    }
  }

  /// Whether frame t reads a state other than zeros.
  bool reads_state(std::int64_t t) const { return t < longest_ && (t > 0 || is_continued_); }

  void forward_frame(std::int64_t t) {
    if (reads_state(t)) from_state_.forward(hidden_at(t - 1), gates_at(t));
    T* outputs = projected_ ? outputs_.data() + t * batch_ * cell_ : hidden_at(t);
    context_.parallel(batch_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) {
        float* cells = cells_at(t) + n * cell_;
        if (t < lengths_[size(n)]) {
          k_.lstm_cell(gates_at(t) + n * gates(), cells - batch_ * cell_, cells, outputs + n * cell_, cell_);
        } else {
          std::fill_n(cells, cell_, 0.0f);
          std::fill_n(outputs + n * cell_, cell_, T{});
        }
      }
    });
    if (!projected_) return;
    if (t < longest_)
      projection_->forward(outputs, hidden_at(t));
    else
      std::fill_n(hidden_at(t), batch_ * width_, T{});
  }

  void backward_frame(std::int64_t t) {
    T* hidden = hidden_gradients_.data() + t * batch_ * width_;
    if (t + 1 < longest_) {
      // The next frame reads this one's state, too.
      from_state_.input_gradient(sums_gradient_at(t + 1), output_gradient_.data());
      const T* terms[2] = {hidden, output_gradient_.data()};
      k_.sum(terms, 2, hidden, batch_ * width_, false);
    }
    const T* outputs = hidden;
    if (projected_ && t < longest_) {
      projection_->input_gradient(hidden, output_gradient_.data());
      outputs = output_gradient_.data();
    }
    context_.parallel(batch_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) {
        T* sums_gradient = sums_gradient_at(t) + n * gates();
        const float* cells = cells_at(t) + n * cell_;
        if (t < lengths_[size(n)])
          k_.lstm_cell_gradient(gates_at(t) + n * gates(), cells - batch_ * cell_, cells, outputs + n * cell_,
                                cell_gradient_.data() + n * cell_, sums_gradient, cell_);
        else
          std::fill_n(sums_gradient, gates(), T{});
      }
    });
  }

  void add_weight_gradients() {
    for (const ParameterView& p : b_.parameters) std::fill_n(p.gradient, p.info->elements, 0.0f);
    for (std::int64_t t = 0; t < run_; t += chunk_) {
      const T* sums = sums_gradient_at(t);
      input_gradient_->add(inputs_.data() + t * batch_ * features_, sums, b_.parameters[0].gradient);
      state_gradient_->add(hidden_at(t - 1), sums, b_.parameters[1].gradient);
      if (projected_)
        projection_gradient_->add(outputs_.data() + t * batch_ * cell_,
                                  hidden_gradients_.data() + t * batch_ * width_,
                                  projection_weights().gradient);
      if (bias_)
        context_.parallel(gates(), [&](int, std::int64_t first, std::int64_t last) {
          k_.add_rows(sums + first, chunk_ * batch_, gates(), last - first,
                      b_.parameters[2].gradient + first);
        });
    }
    if (bias_) std::copy_n(b_.parameters[2].gradient, gates(), b_.parameters[3].gradient);
  }

  /// Of memory: whole chunks.
  std::int64_t rows() const { return (frames_ + chunk_ - 1) / chunk_ * chunk_ * batch_; }
  std::int64_t gates() const { return 4 * cell_; }
  float* gates_at(std::int64_t t) { return gates_.data() + t * batch_ * gates(); }
  /// The gradients of the gates' sums. If they are float32, they overwrite the gates.
  T* sums_gradient_at(std::int64_t t) {
    if constexpr (std::is_same_v<T, float>)
      return gates_at(t);
    else
      return sums_gradients_.data() + t * batch_ * gates();
  }
  // Frame -1 is the state that the sequences start from.
  float* cells_at(std::int64_t t) { return cells_.data() + (t + 1) * batch_ * cell_; }
  T* hidden_at(std::int64_t t) { return hidden_.data() + (t + 1) * batch_ * width_; }
  const ParameterView& projection_weights() const { return b_.parameters[bias_ ? 4 : 2]; }
  const float* sum_of_biases() {
    biases_ = Buffer<float>(size(gates()));
    return biases_.data();
  }

  /// The first run_ frames of (sample, time, width) to (time, sample, width); 0 behind a sequence's end.
  void by_time(const T* from, T* to, std::int64_t width) const {
    context_.parallel(run_ * batch_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t t = r / batch_, n = r % batch_;
        if (t < lengths_[size(n)])
          std::copy_n(from + (n * frames_ + t) * width, width, to + r * width);
        else
          std::fill_n(to + r * width, width, T{});
      }
    });
  }
  /// The way back, to all frames.
  void by_sample(const T* from, T* to, std::int64_t width) const {
    context_.parallel(frames_ * batch_, [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t t = r % frames_, n = r / frames_;
        if (t < lengths_[size(n)])
          std::copy_n(from + (t * batch_ + n) * width, width, to + r * width);
        else
          std::fill_n(to + r * width, width, T{});
      }
    });
  }

  Context& context_;
  const ActivationKernels<T>& k_;
  Binding b_;
  // width: of the state, the cell's or the projection's
  std::int64_t cell_, width_, features_, frames_, batch_;
  bool projected_, bias_;
  std::int64_t chunk_;    // frames
  Buffer<float> biases_;  // both vectors' sum; declared before the products that read it
  Product from_input_, from_state_;
  std::optional<Product> projection_;
  std::optional<WeightGradient> input_gradient_, state_gradient_, projection_gradient_;
  // Of the last forward. run: the frames that are computed, whole chunks.
  std::vector<std::int64_t> lengths_;
  std::int64_t longest_ = 0, run_ = 0;
  bool is_continued_ = false;
  // By time. What a product reads is stored as T; sums, activated gates and cells are float32.
  Buffer<float> gates_, cells_;
  Buffer<T> inputs_, outputs_, hidden_, hidden_gradients_, sums_gradients_;
  Buffer<float> cell_gradient_;  // of one frame
  Buffer<T> output_gradient_;
};

}  // namespace

std::unique_ptr<Op> make_lstm(Context& context, const Binding& binding, const LstmDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<LstmOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
