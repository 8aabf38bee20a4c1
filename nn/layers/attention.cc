// Multi-head scaled dot-product attention (Vaswani and others 2017, section 3.2) of a sequence to itself,
// without the products before and after it, which are dense layers.
#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class AttentionLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("heads", desc_.heads, "parts of the features that attend on their own",
            {.min = 1, .max = max_option});
    v.field("causal", desc_.causal, "a frame attends only to itself and to those before it");
    v.field("dropout", desc_.dropout, "the probability that a weight becomes 0 in training",
            {.min = 0, .max = 0.999});
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = sequence(inputs.first(1));
    features_ = in[1];
    if (inputs.size() == 1) {
      if (in[1] % 3 != 0)
        throw LayerError(fmt::format(
            "takes queries, keys and values side by side, got {} features, which 3 does not divide", in[1]));
      features_ /= 3;
    } else if (inputs.size() == 3) {
      for (const Shape& other : inputs)
        if (other != in)
          throw LayerError(fmt::format("inputs {} and {} differ", shape_text(in), shape_text(other)));
    } else {
      throw LayerError(
          fmt::format("takes one input, or queries, keys and values; got {} inputs", inputs.size()));
    }
    if (features_ % desc_.heads != 0)
      throw LayerError(fmt::format("{} heads do not divide {} features", desc_.heads, features_));
    frames_ = in[0];
    const std::int64_t pairs = desc_.causal ? (frames_ + 1) / 2 : frames_;  // of each frame
    const auto flops = elements_of({4, frames_, pairs, features_}, std::numeric_limits<std::int64_t>::max());
    if (!flops) throw LayerError("the sequence is too long");
    flops_ = *flops;
    // Draws are numbered by 32 bits (nn/dropout.h).
    if (desc_.dropout > 0 && !elements_of({desc_.heads, frames_, (frames_ + 3) / 4}, std::int64_t{1} << 32))
      throw LayerError(fmt::format("{} heads over {} frames have too many weights for dropout: at most 2^34",
                                   desc_.heads, frames_));
    return {frames_, features_};
  }
  std::int64_t flops() const override { return flops_; }
  std::int64_t input_gradient_flops() const override {  // forward has two products, backward five
    return flops_ / 2 * 5;
  }
  std::int64_t kept_bytes() const override {  // what each row's probabilities are computed from again
    return desc_.heads * frames_ * static_cast<std::int64_t>(sizeof(float));
  }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.attention(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override {
    using Value = OperatorWriter::Value;
    const std::int64_t width = features_ / desc_.heads;
    std::vector<Value> parts = out.inputs();
    if (parts.size() == 1) parts = out.add("Split", parts, {{"axis", std::int64_t{-1}}}, 3);
    const Value by_head = out.constant("by_head", {0, 0, desc_.heads, width});
    const auto heads = [&](const Value& part, std::vector<std::int64_t> order) {
      return out.add("Transpose", {out.add("Reshape", {part, by_head})}, {{"perm", std::move(order)}});
    };
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    Value scores = out.add("MatMul", {heads(parts[0], {0, 2, 1, 3}), heads(parts[1], {0, 2, 3, 1})});
    scores = out.add("Mul", {scores, out.constant("scale", {}, {scale})});
    if (desc_.causal) scores = masked(out, scores);
    const Value weights = out.add("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
    const Value sums = out.add("MatMul", {weights, heads(parts[2], {0, 2, 1, 3})});
    const Value by_frame = out.add("Transpose", {sums}, {{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}});
    out.output(out.add("Reshape", {by_frame, out.constant("joined", {0, 0, features_})}));
  }

 private:
  /// Minus infinity for keys behind the query.
  static OperatorWriter::Value masked(OperatorWriter& out, const OperatorWriter::Value& scores) {
    using Value = OperatorWriter::Value;
    const Value shape = out.add("Shape", {scores});
    const Value frames = out.add("Slice", {shape, out.constant("third", {3}), out.constant("fourth", {4})});
    const Value limit = out.add("Cast", {out.add("Squeeze", {frames})}, {{"to", std::int64_t{1}}});
    const Value numbers =
        out.add("Range", {out.constant("none", {}, {0.0f}), limit, out.constant("one", {}, {1.0f})});
    const Value keys = out.add("Unsqueeze", {numbers, out.constant("row", {0})});
    const Value queries = out.add("Unsqueeze", {numbers, out.constant("column", {1})});
    const Value seen = out.add("LessOrEqual", {keys, queries});
    const Value never = out.constant("never", {}, {-std::numeric_limits<float>::infinity()});
    return out.add("Where", {seen, scores, never});
  }

  AttentionDesc desc_;
  std::int64_t frames_ = 1, features_ = 1, flops_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_attention_layer() {
  return std::make_unique<AttentionLayer>();
}

}  // namespace lpsgd
