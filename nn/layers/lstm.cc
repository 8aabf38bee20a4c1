// Long short-term memory (Hochreiter and Schmidhuber 1997; projection: Sak, Senior, Beaufays 2014), one
// layer:
//   i, f, o = sigmoid, g = tanh of W_ih x + b_ih + W_hh h + b_hh;  c = f c + i g;  h = o tanh(c), projected:
//   W_hr h.
// Names, shapes and the gates' order (i, f, g, o) are those of PyTorch's nn.LSTM with one layer. A sequence
// starts from zeros, or goes on with the state (h, c) of the pass before (Samples::continues).
#include <fmt/core.h>

#include "nn/layer.h"
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
    const Shape& in = single(inputs);
    init_.check();
    if (in.size() != 2)
      throw LayerError(fmt::format("takes a sequence (frames, features), got {}", shape_text(in)));
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

 private:
  std::int64_t width() const { return desc_.projection > 0 ? desc_.projection : desc_.cell; }

  LstmDesc desc_;
  InitOptions init_;
  std::int64_t frames_ = 1, features_ = 1;
};

}  // namespace

std::unique_ptr<Layer> make_lstm_layer() {
  return std::make_unique<LstmLayer>();
}

}  // namespace lpsgd
