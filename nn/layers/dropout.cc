// Dropout (Srivastava et al. 2014), scaled in training so that evaluation needs no change.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class DropoutLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("probability", probability_, "the probability that a value becomes 0", {.min = 0, .max = 0.999});
  }
  Shape infer(std::span<const Shape> inputs) override {
    elements_ = elements_of(single(inputs)).value_or(0);
    return single(inputs);
  }
  std::int64_t kept_bytes() const override { return elements_; }
  bool can_run_in_place() const override { return true; }
  bool backward_reads_input() const override { return false; }
  bool sums_gradients() const override { return true; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.dropout(binding, probability_);
  }
  void write_operators(OperatorWriter& out) const override { out.output(out.input()); }

 private:
  double probability_ = 0.5;
  std::int64_t elements_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_dropout_layer() {
  return std::make_unique<DropoutLayer>();
}

}  // namespace lpsgd
