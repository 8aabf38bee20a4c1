// Layers that make, mark and select the frames of a sequence, as transformers need them: an image's pixels as
// frames, a trained vector for each position (Gehring and others 2017, section 3.1), a class token (Devlin
// and others 2018, section 3; Dosovitskiy and others 2020, section 3.1), one frame of a sequence, and the
// mean of all.
#include <fmt/core.h>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

/// Entry `index` of a value's dimensions.
OperatorWriter::Value dimension(OperatorWriter& out, const OperatorWriter::Value& value, std::int64_t index) {
  return out.add("Slice",
                 {out.add("Shape", {value}), out.constant("from", {index}), out.constant("to", {index + 1})});
}

class ToSequenceLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = image(inputs);
    return {in[0] * in[1], in[2]};
  }
  bool is_view() const override { return true; }
  std::unique_ptr<Op> make(Backend&, const Binding&) const override {
    require(false, "a view has no operation");
    return nullptr;
  }
  void write_operators(OperatorWriter& out) const override {
    const OperatorWriter::Value pixels =
        out.add("Reshape", {out.input(), out.constant("pixels", {0, out.input_shape()[2], -1})});
    out.output(out.add("Transpose", {pixels}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}}));
  }
};

class PositionLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.required();
    v.field("frames", frames_, "the largest number of frames: the table has a vector for each",
            {.min = 1, .max = max_option});
    v.field("init_deviation", deviation_, "initial vectors: normal with this deviation", {.min = 0});
    v.field("trained", trained_,
            "false: the vectors are not trained; they are sines and cosines unless `--init` gives others");
  }
  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = sequence(inputs);
    if (in[0] > frames_)
      throw LayerError(fmt::format("has vectors for {} frames, and its input has {}", frames_, in[0]));
    if (!trained_ && deviation_ != default_deviation)
      throw LayerError("has init_deviation, but its vectors are not trained");
    features_ = in[1];
    elements_ = in[0] * in[1];
    return in;
  }
  std::vector<ParameterSpec> parameters() const override {
    const Init init{trained_ ? Init::Kind::normal : Init::Kind::sines, deviation_};
    return {{"weight", TensorKind::embedding, {frames_, features_}, init}};
  }
  bool is_trained() const override { return trained_; }
  bool hands_gradient_on() const override { return !trained_; }
  std::int64_t flops() const override { return elements_; }
  bool can_run_in_place() const override { return true; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.position(binding);
  }
  void write_operators(OperatorWriter& out) const override {
    const OperatorWriter::Value rows =
        out.add("Slice", {out.tensor("weight"), out.constant("first", {0}), dimension(out, out.input(), 1)});
    out.output(out.add("Add", {out.input(), rows}));
  }

 private:
  std::int64_t frames_ = 1, features_ = 1, elements_ = 0;
  static constexpr double default_deviation = 0.02;
  double deviation_ = default_deviation;
  bool trained_ = true;
};

class ClassTokenLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("init_deviation", deviation_, "initial values: normal with this deviation", {.min = 0});
  }
  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = sequence(inputs);
    features_ = in[1];
    return {in[0] + 1, in[1]};
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", TensorKind::embedding, {features_}, {Init::Kind::normal, deviation_}}};
  }
  bool changes_frames() const override { return true; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.class_token(binding);
  }
  void write_operators(OperatorWriter& out) const override {
    const OperatorWriter::Value shape =
        out.add("Concat", {dimension(out, out.input(), 0), out.constant("row", {1, features_})},
                {{"axis", std::int64_t{0}}});
    const OperatorWriter::Value token = out.add("Expand", {out.tensor("weight"), shape});
    out.output(out.add("Concat", {token, out.input()}, {{"axis", std::int64_t{1}}}));
  }

 private:
  std::int64_t features_ = 1;
  double deviation_ = 0.02;
};

class SelectFrameLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("index", index_, "which frame, counted from 0", {.min = 0, .max = max_option});
  }
  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = sequence(inputs);
    if (index_ >= in[0])
      throw LayerError(fmt::format("selects frame {}, and its input has {} frames", index_, in[0]));
    return {in[1]};
  }
  bool changes_frames() const override { return true; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.select_frame(binding, index_);
  }
  void write_operators(OperatorWriter& out) const override {
    const OperatorWriter::Value frame =
        out.add("Gather", {out.input(), out.constant("index", {index_})}, {{"axis", std::int64_t{1}}});
    out.output(out.add("Squeeze", {frame, out.constant("axis", {1})}));
  }

 private:
  std::int64_t index_ = 0;
};

class MeanFramesLayer final : public Layer {
 public:
  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = sequence(inputs);
    frames_ = in[0];
    return {in[1]};
  }
  bool changes_frames() const override { return true; }
  bool backward_reads_input() const override { return false; }
  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    Binding column = binding;  // an image of one column
    column.inputs[0].shape = {frames_, 1, binding.shape[0]};
    column.shape = {1, 1, binding.shape[0]};
    return backend.pool(column, {PoolDesc::Kind::average, {frames_, 1}, {1, 1}, {0, 0}});
  }
  void write_operators(OperatorWriter& out) const override {
    out.output(out.add("ReduceMean", {out.input()},
                       {{"axes", std::vector<std::int64_t>{1}}, {"keepdims", std::int64_t{0}}}));
  }

 private:
  std::int64_t frames_ = 1;
};

}  // namespace

std::unique_ptr<Layer> make_to_sequence_layer() {
  return std::make_unique<ToSequenceLayer>();
}
std::unique_ptr<Layer> make_position_layer() {
  return std::make_unique<PositionLayer>();
}
std::unique_ptr<Layer> make_class_token_layer() {
  return std::make_unique<ClassTokenLayer>();
}
std::unique_ptr<Layer> make_select_frame_layer() {
  return std::make_unique<SelectFrameLayer>();
}
std::unique_ptr<Layer> make_mean_frames_layer() {
  return std::make_unique<MeanFramesLayer>();
}

}  // namespace lpsgd
