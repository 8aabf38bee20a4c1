// An LSTM layer over sequences of different lengths, as nn/cpu/lstm.cc does it. It is used where cuDNN's is
// not: for bfloat16, and where results must not differ from run to run. Rows are ordered by time, then by
// sample. So everything that does not depend on the previous step is one matrix product over all frames.
// Operands of products have the network's type; gates and cells are float32.
#include "nn/cuda/product.h"

namespace lpsgd::cuda {
namespace {

class LstmOp final : public Op {
 public:
  LstmOp(Context& context, const Binding& b, const LstmDesc& desc)
      : context_(context),
        b_(b),
        cell_(desc.cell),
        width_(b.shape[1]),
        features_(b.inputs[0].shape[1]),
        frames_(b.shape[0]),
        batch_(b.batch),
        projected_(desc.projection > 0),
        bias_(desc.bias) {
    inputs_ = low(rows() * features_);
    gates_ = context.array<float>(rows() * gates());
    cells_ = context.array<float>((rows() + batch_) * cell_);
    hidden_ = low((rows() + batch_) * width_);
    outputs_ = projected_ ? low(rows() * cell_) : hidden_at(0);
    if (bias_) biases_ = context.array<float>(gates());
    input_weights_ = context.operand(b.parameters[0].value);
    state_weights_ = context.operand(b.parameters[1].value);
    if (projected_) projection_weights_ = context.operand(projection().value);

    const DataType type = context.type;
    ProductDesc d{.m = rows(), .n = gates(), .k = features_, .b_transposed = true, .bias = biases_};
    from_input_.emplace(context, d, inputs_, input_weights_, gates_);
    d = {.m = batch_, .n = gates(), .k = width_, .b_transposed = true, .accumulate = true};
    d.alignment = aligned(batch_ * width_, type);
    d.out_alignment = aligned(batch_ * gates(), DataType::f32);
    from_state_.emplace(context, d, hidden_, state_weights_, gates_);
    if (projected_) {
      d = {.m = batch_, .n = width_, .k = cell_, .b_transposed = true, .out = type};
      d.alignment = aligned(batch_ * cell_, type);
      d.out_alignment = aligned(batch_ * width_, type);
      project_.emplace(context, d, outputs_, projection_weights_, hidden_);
    }
    if (b.training) plan_backward();
  }

  void forward(const Pass& pass) override {
    const cudaStream_t s = context_.handle();
    const std::vector<float*>& carried = pass.training ? b_.carried : b_.carried_in_evaluation;
    check(launch_marked_rows(DataType::f32, carried[0], type(), hidden_at(-1), batch_, width_,
                             context_.continues, 1, s));
    check(launch_marked_rows(DataType::f32, carried[1], DataType::f32, cells_at(-1), batch_, cell_,
                             context_.continues, 1, s));
    if (bias_) check(launch_add_vectors(b_.parameters[2].value, b_.parameters[3].value, biases_, gates(), s));
    check(launch_by_time(type(), b_.inputs[0].value, inputs_, shape(), features_, context_.lengths, s));
    from_input_->run(inputs_, input_weights_, gates_);
    for (std::int64_t t = 0; t < frames_; ++t) {
      from_state_->run(hidden_at(t - 1), state_weights_, gates_at(t));
      check(launch_lstm_cell(type(), gates_at(t), cells_at(t - 1), cells_at(t), at(outputs_, t, cell_),
                             batch_, cell_, t, context_.lengths, s));
      if (projected_) project_->run(at(outputs_, t, cell_), projection_weights_, hidden_at(t));
    }
    check(launch_by_sample(type(), hidden_at(0), b_.output, shape(), width_, context_.lengths, s));
    // The next pass may go on with the state of sequences that have the full length.
    check(launch_marked_rows(type(), hidden_at(frames_ - 1), DataType::f32, carried[0], batch_, width_,
                             context_.lengths, frames_, s));
    check(launch_marked_rows(DataType::f32, cells_at(frames_ - 1), DataType::f32, carried[1], batch_, cell_,
                             context_.lengths, frames_, s));
  }

  void backward() override {
    const cudaStream_t s = context_.handle();
    check(launch_by_time_f32(type(), b_.output_gradients[0], hidden_gradients_, shape(), width_,
                             context_.lengths, s));
    zero_bytes(cell_gradient_, static_cast<std::size_t>(batch_ * cell_) * sizeof(float), context_.stream);
    for (std::int64_t t = frames_ - 1; t >= 0; --t) {
      float* hidden = hidden_gradients_ + t * batch_ * width_;
      // The next frame reads this one's state, too.
      if (t + 1 < frames_) to_state_->run(at(gate_gradients_, t + 1, gates()), state_weights_, hidden);
      const float* outputs = hidden;
      if (projected_) {
        void* low_hidden = at(low_hidden_gradients_, t, width_);
        if (low_hidden != hidden)
          check(launch_convert(hidden, DataType::f32, low_hidden, type(), batch_ * width_, s));
        unproject_->run(low_hidden, projection_weights_, output_gradient_);
        outputs = output_gradient_;
      }
      check(launch_lstm_cell_gradient(type(), gates_at(t), cells_at(t - 1), cells_at(t), outputs,
                                      cell_gradient_, at(gate_gradients_, t, gates()), batch_, cell_, t,
                                      context_.lengths, s));
    }
    input_weight_gradient_->run(gate_gradients_, inputs_, b_.parameters[0].gradient);
    if (bias_)
      check(launch_column_sums(type(), gate_gradients_, cut_, partials_, b_.parameters[2].gradient,
                               b_.parameters[3].gradient, s));
    state_weight_gradient_->run(gate_gradients_, hidden_at(-1), b_.parameters[1].gradient);
    if (projected_) projection_gradient_->run(low_hidden_gradients_, outputs_, projection().gradient);
    if (!to_input_) return;
    to_input_->run(gate_gradients_, input_weights_, inputs_);  // they were read for the last time above
    check(launch_by_sample(type(), inputs_, b_.inputs[0].gradient, shape(), features_, context_.lengths, s));
  }

 private:
  void plan_backward() {
    const DataType type = context_.type;
    gate_gradients_ = low(rows() * gates());
    hidden_gradients_ = context_.array<float>(rows() * width_);
    cell_gradient_ = context_.array<float>(batch_ * cell_);
    ProductDesc d;
    if (frames_ > 1) {
      d = {.m = batch_, .n = width_, .k = gates(), .accumulate = true};
      d.alignment = aligned(batch_ * gates(), type);
      d.out_alignment = aligned(batch_ * width_, DataType::f32);
      to_state_.emplace(context_, d, gate_gradients_, state_weights_, hidden_gradients_);
    }
    d = {.m = gates(), .n = width_, .k = rows(), .a_transposed = true};
    state_weight_gradient_.emplace(context_, d, gate_gradients_, hidden_at(-1), b_.parameters[1].gradient);
    if (projected_) {
      low_hidden_gradients_ = type == DataType::f32 ? hidden_gradients_ : low(rows() * width_);
      output_gradient_ = context_.array<float>(batch_ * cell_);
      d = {.m = batch_, .n = cell_, .k = width_};
      d.alignment = aligned(batch_ * width_, type);
      unproject_.emplace(context_, d, low_hidden_gradients_, projection_weights_, output_gradient_);
      d = {.m = width_, .n = cell_, .k = rows(), .a_transposed = true};
      projection_gradient_.emplace(context_, d, low_hidden_gradients_, outputs_, projection().gradient);
    }
    d = {.m = gates(), .n = features_, .k = rows(), .a_transposed = true};
    input_weight_gradient_.emplace(context_, d, gate_gradients_, inputs_, b_.parameters[0].gradient);
    if (b_.inputs[0].gradient) {
      d = {.m = rows(), .n = features_, .k = gates(), .out = type};
      to_input_.emplace(context_, d, gate_gradients_, input_weights_, inputs_);
    }
    if (!bias_) return;
    cut_ = cut_rows(type, rows(), gates());
    partials_ = context_.partials<double>(cut_);
  }

  DataType type() const { return b_.type; }
  std::int64_t rows() const { return frames_ * batch_; }
  std::int64_t gates() const { return 4 * cell_; }
  SequenceShape shape() const { return {batch_, frames_}; }
  const ParameterView& projection() const { return b_.parameters[bias_ ? 4 : 2]; }
  float* gates_at(std::int64_t t) const { return gates_ + t * batch_ * gates(); }
  // Frame -1 is the state that the sequences start from.
  float* cells_at(std::int64_t t) const { return cells_ + (t + 1) * batch_ * cell_; }
  void* hidden_at(std::int64_t t) const { return at(hidden_, t + 1, width_); }

  void* low(std::int64_t n) { return context_.allocate(n * size_of(context_.type)); }
  /// Frame t of an array of the network's type, ordered by time.
  void* at(void* array, std::int64_t t, std::int64_t width) const {
    return static_cast<std::byte*>(array) + t * batch_ * width * size_of(context_.type);
  }
  /// The alignment in bytes of addresses that are multiples of `step` values behind an aligned one.
  static std::int64_t aligned(std::int64_t step, DataType type) {
    std::int64_t out = 16;
    while (step * size_of(type) % out != 0) out /= 2;
    return out;
  }

  Context& context_;
  Binding b_;
  std::int64_t cell_, width_, features_, frames_, batch_;  // width: of the state, the cell's or projection's
  bool projected_, bias_;
  const void *input_weights_ = nullptr, *state_weights_ = nullptr, *projection_weights_ = nullptr;
  std::optional<Product> from_input_, from_state_, project_;
  std::optional<Product> to_state_, to_input_, unproject_;
  std::optional<Product> input_weight_gradient_, state_weight_gradient_, projection_gradient_;
  // By time. Of the network's type: what products read.
  void *inputs_ = nullptr, *hidden_ = nullptr, *outputs_ = nullptr, *gate_gradients_ = nullptr;
  void* low_hidden_gradients_ = nullptr;
  float *gates_ = nullptr, *cells_ = nullptr, *biases_ = nullptr, *hidden_gradients_ = nullptr;
  float *cell_gradient_ = nullptr, *output_gradient_ = nullptr;  // of one frame
  Cut cut_;
  double* partials_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_lstm(Context& context, const Binding& binding, const LstmDesc& desc) {
  if (auto op = make_cudnn_lstm(context, binding, desc)) return op;
  return std::make_unique<LstmOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
