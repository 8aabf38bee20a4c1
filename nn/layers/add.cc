// Elementwise sum. Backward moves nothing: every input's gradient is the output's.
#include <fmt/core.h>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class AddLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override {
    if (inputs.size() < 2) throw LayerError(fmt::format("takes two inputs or more, got {}", inputs.size()));
    for (const Shape& in : inputs)
      if (in != inputs[0])
        throw LayerError(fmt::format("inputs {} and {} differ", shape_text(inputs[0]), shape_text(in)));
    flops_ = static_cast<std::int64_t>(inputs.size() - 1) * elements_of(inputs[0]).value_or(0);
    return inputs[0];
  }
  std::int64_t flops() const override { return flops_; }
  bool is_sum() const override { return true; }
  bool can_fuse(Epilogue epilogue) const override { return !epilogue.residual; }
  bool backward_reads_input() const override { return false; }
  bool sums_gradients() const override { return true; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.add(binding);
  }
  void write_operators(OperatorWriter& out) const override { out.output(out.add("Sum", out.inputs())); }

 private:
  std::int64_t flops_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_add_layer() {
  return std::make_unique<AddLayer>();
}

}  // namespace lpsgd
