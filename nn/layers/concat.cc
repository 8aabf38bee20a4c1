// Joins its inputs' last dimension: channels of images, features of vectors.
#include <fmt/core.h>

#include <algorithm>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class ConcatLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override {
    if (inputs.size() < 2) throw LayerError(fmt::format("takes two inputs or more, got {}", inputs.size()));
    Shape out = inputs[0];
    for (const Shape& in : inputs.subspan(1)) {
      if (in.size() != out.size() || !std::equal(in.begin(), in.end() - 1, out.begin()))
        throw LayerError(fmt::format("inputs {} and {} differ in more than their last dimension",
                                     shape_text(inputs[0]), shape_text(in)));
      out.back() += in.back();
    }
    return out;
  }
  bool is_concat() const override { return true; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.concat(binding);
  }
  void write_operators(OperatorWriter& out) const override {
    const bool channels = out.input_shape().size() == 3;
    out.output(out.add("Concat", out.inputs(), {{"axis", std::int64_t{channels ? 1 : -1}}}));
  }
};

}  // namespace

std::unique_ptr<Layer> make_concat_layer() {
  return std::make_unique<ConcatLayer>();
}

}  // namespace lpsgd
