// y = factor * x, a constant factor. It runs in place where it can, so that scaling the scores costs one
// pass.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class ScaleLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("factor", factor_, "what every value is multiplied by", {.min = -max_factor, .max = max_factor});
  }
  Shape infer(std::span<const Shape> inputs) override { return single(inputs); }
  bool can_run_in_place() const override { return true; }
  bool backward_reads_input() const override { return false; }
  bool sums_gradients() const override { return true; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.scale(binding, factor_);
  }
  void write_operators(OperatorWriter& out) const override {
    out.output(out.add("Mul", {out.input(), out.constant("factor", {}, {static_cast<float>(factor_)})}));
  }

 private:
  static constexpr double max_factor = 1e6;
  double factor_ = 1;
};

}  // namespace

std::unique_ptr<Layer> make_scale_layer() {
  return std::make_unique<ScaleLayer>();
}

}  // namespace lpsgd
