// Long short-term memory (Hochreiter and Schmidhuber 1997; projection: Sak, Senior, Beaufays 2014), one
// layer:
//   i, f, o = sigmoid, g = tanh of W_ih x + b_ih + W_hh h + b_hh;  c = f c + i g;  h = o tanh(c), projected:
//   W_hr h.
// Names, shapes and the gates' order (i, f, g, o) are those of PyTorch's nn.LSTM with one layer. A sequence
// starts from zeros, or goes on with the state (h, c) of the pass before (Samples::continues).
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class LstmLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("cell", desc_.cell, "memory cells", {.min = 1, .max = max_option});
    v.field("projection", desc_.projection, "features that the output is projected to; 0: no projection",
            {.min = 0, .max = max_option});
    v.field("bias", desc_.bias, "add trained biases to the gates (two vectors, as in PyTorch)");
    init_.fields(v);
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = sequence(inputs);
    init_.check();
    if (desc_.projection >= desc_.cell && desc_.projection > 0)
      throw LayerError(fmt::format("the projection to {} features is not smaller than {} cells",
                                   desc_.projection, desc_.cell));
    frames_ = in[0];
    features_ = in[1];
    return {frames_, width()};
  }

  std::vector<ParameterSpec> parameters() const override {
    const Init init = init_.weights(uniform_over(desc_.cell)), bias = init_.biases(uniform_over(desc_.cell));
    const std::int64_t gates = 4 * desc_.cell;
    std::vector<ParameterSpec> out{{"weight_ih_l0", TensorKind::lstm, {gates, features_}, init},
                                   {"weight_hh_l0", TensorKind::lstm, {gates, width()}, init}};
    if (desc_.bias) {
      out.push_back({"bias_ih_l0", TensorKind::bias, {gates}, bias});
      out.push_back({"bias_hh_l0", TensorKind::bias, {gates}, bias});
    }
    if (desc_.projection > 0)
      out.push_back({"weight_hr_l0", TensorKind::lstm, {desc_.projection, desc_.cell}, init});
    return out;
  }

  std::int64_t flops() const override {
    return frames_ *
           (8 * desc_.cell * (features_ + width()) + 2 * desc_.projection * desc_.cell + 12 * desc_.cell);
  }
  std::vector<CarriedSpec> carried() const override { return {{"h", {width()}}, {"c", {desc_.cell}}}; }
  bool backward_reads_input() const override { return false; }  // the operation keeps it, ordered by time
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.lstm(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override;

 private:
  std::int64_t width() const { return desc_.projection > 0 ? desc_.projection : desc_.cell; }

  LstmDesc desc_;
  InitOptions init_;
  std::int64_t frames_ = 1, features_ = 1;
};

/// From the gates' order of PyTorch (i, f, g, o) to that of ONNX (i, o, f, g); `rows` has 4 * `gate` values.
void append_gates(std::vector<float>& to, std::span<const float> rows) {
  const std::size_t gate = rows.size() / 4;
  for (const std::size_t g : {0, 3, 1, 2}) {
    const std::span<const float> from = rows.subspan(g * gate, gate);
    to.insert(to.end(), from.begin(), from.end());
  }
}

/// The product of (rows, inner) and (inner, columns), summed in double.
std::vector<float> product(std::span<const float> a, std::span<const float> b, std::int64_t inner,
                           std::int64_t columns) {
  const auto n = static_cast<std::size_t>(columns), k = static_cast<std::size_t>(inner);
  std::vector<float> out(a.size() / k * n);
  std::vector<double> row(n);
  for (std::size_t r = 0; r < a.size() / k; ++r) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t i = 0; i < k; ++i)
      for (std::size_t c = 0; c < n; ++c) row[c] += static_cast<double>(a[r * k + i]) * b[i * n + c];
    std::transform(row.begin(), row.end(), out.begin() + static_cast<std::ptrdiff_t>(r * n),
                   [](double sum) { return static_cast<float>(sum); });
  }
  return out;
}

// ONNX's LSTM has no projection. W_hh h = W_hh W_hr (o tanh(c)), so with W_hh W_hr as recurrent weights it
// computes the unprojected output o tanh(c), which is projected behind it. The state h is unprojected, too.
void LstmLayer::write_operators(OperatorWriter& out) const {
  using Value = OperatorWriter::Value;
  const std::vector<std::int64_t> swap{1, 0, 2};  // batch and frames
  const bool projects = desc_.projection > 0;
  std::vector<float> input_weights, recurrent_weights, biases, folded;
  append_gates(input_weights, out.values("weight_ih_l0"));
  if (projects)
    folded = product(out.values("weight_hh_l0"), out.values("weight_hr_l0"), desc_.projection, desc_.cell);
  append_gates(recurrent_weights, projects ? folded : out.values("weight_hh_l0"));
  const std::int64_t gates = 4 * desc_.cell;
  std::vector<Value> in{out.add("Transpose", {out.input()}, {{"perm", swap}}),
                        out.constant("W", {1, gates, features_}, std::move(input_weights)),
                        out.constant("R", {1, gates, desc_.cell}, std::move(recurrent_weights)), "", ""};
  if (desc_.bias) {
    append_gates(biases, out.values("bias_ih_l0"));
    append_gates(biases, out.values("bias_hh_l0"));
    in[3] = out.constant("B", {1, 2 * gates}, std::move(biases));
  }
  if (out.has_state()) {
    in.push_back(out.state("h", desc_.cell));
    in.push_back(out.state("c", desc_.cell));
  }
  const std::vector<Value> lstm = out.add("LSTM", std::move(in), {{"hidden_size", desc_.cell}}, 3);
  if (out.has_state()) {
    out.set_state("h", desc_.cell, lstm[1]);
    out.set_state("c", desc_.cell, lstm[2]);
  }
  const Value frames = out.add("Squeeze", {lstm[0], out.constant("direction", std::vector<std::int64_t>{1})});
  const Value all = out.add("Transpose", {frames}, {{"perm", swap}});
  if (!projects) return out.output(all);
  out.output(out.add("MatMul", {all, out.add("Transpose", {out.tensor("weight_hr_l0")})}));
}

}  // namespace

std::unique_ptr<Layer> make_lstm_layer() {
  return std::make_unique<LstmLayer>();
}

}  // namespace lpsgd
