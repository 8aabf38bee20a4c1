// Token numbers (tokens) to vectors (tokens, dimension): rows of a trained table.
#include <fmt/core.h>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class EmbeddingLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("vocabulary", vocabulary_, "rows of the table: tokens are 0 to vocabulary - 1",
            {.min = 1, .max = 1 << 24});  // token numbers travel as float32
    v.required();
    v.field("dimension", dimension_, "length of a row", {.min = 1, .max = max_option});
    v.field("init_deviation", deviation_, "initial rows: normal with this deviation", {.min = 0});
    v.field("init_range", range_,
            "initial rows: uniform between minus this and this; 0: normal, by init_deviation", {.min = 0});
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = single(inputs);
    if (in.size() != 1) throw LayerError(fmt::format("takes token numbers (tokens), got {}", shape_text(in)));
    return {in[0], dimension_};
  }
  std::vector<ParameterSpec> parameters() const override {
    const Init init = range_ > 0 ? Init{Init::Kind::uniform, range_} : Init{Init::Kind::normal, deviation_};
    return {{"weight", TensorKind::embedding, {vocabulary_, dimension_}, init}};
  }
  bool can_share_weight() const override { return true; }
  bool reads_tokens() const override { return true; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.embedding(binding);
  }
  void write_operators(OperatorWriter& out) const override {
    out.output(out.add("Gather", {out.tensor("weight"), out.input()}));
  }

 private:
  std::int64_t vocabulary_ = 1, dimension_ = 1;
  double deviation_ = 1, range_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_embedding_layer() {
  return std::make_unique<EmbeddingLayer>();
}

}  // namespace lpsgd
