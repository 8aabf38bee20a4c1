#include "trainer/onnx_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <set>

#include "core/error.h"
#include "nn/graph.h"
#include "nn/operators.h"
#include "trainer/environment.h"

namespace lpsgd {

namespace {

constexpr std::int64_t ir_version = 7, opset = 13;

/// A dimension is a number, or a word for one that is open.
using Dimensions = std::vector<std::string>;

bool is_number(const std::string& dimension) {
  return dimension.find_first_not_of("0123456789") == std::string::npos;
}

class OnnxWriter final : public OperatorWriter {
 public:
  OnnxWriter(const Graph& graph, std::span<const float> parameters, std::span<const float> frozen,
             const std::vector<NamedBuffer>& buffers, const OnnxOptions& options)
      : graph_(graph), options_(options), parameters_(parameters), frozen_(frozen), buffers_(buffers) {}

  onnx::ModelProto write(const std::string& name, OnnxSummary* summary) {
    model_.set_ir_version(ir_version);
    model_.set_producer_name("lpsgd");
    model_.set_producer_version(revision());
    model_.add_opset_import()->set_version(opset);
    for (const auto& [key, value] : options_.metadata) {
      onnx::StringStringEntryProto& entry = *model_.add_metadata_props();
      entry.set_key(key);
      entry.set_value(value);
    }
    onnx_graph().set_name(name.empty() ? "network" : name);
    write_input();
    for (node_ = 1; node_ < graph_.nodes.size(); ++node_) {
      node().layer->write_operators(*this);
      ordered_.clear();
    }
    name_value(outputs_.back(), "scores", dimensions(graph_.nodes.back().shape));
    for (const State& state : states_) name_value(state.value, state.name, state_dimensions(state.features));
    if (summary) describe(*summary);
    return std::move(model_);
  }

  std::vector<Value> inputs() const override {
    std::vector<Value> out;
    for (const std::size_t i : node().inputs) out.push_back(outputs_.at(i));
    return out;
  }
  const Shape& input_shape() const override { return graph_.nodes[node().inputs.front()].shape; }

  Value tensor(const char* suffix) override {
    const Tensor found = find(suffix);
    if (stored_.insert(found.name).second) store(found.name, found.shape, found.values);
    return found.name;
  }

  std::span<const float> values(const char* suffix) override { return find(suffix).values; }

  Value constant(const char* name, const Shape& shape, std::vector<float> values) override {
    const Value full = unique(name);
    store(full, shape, values);
    return full;
  }

  Value constant(const char* name, std::vector<std::int64_t> values) override {
    const Value full = unique(name);
    onnx::TensorProto& out = *onnx_graph().add_initializer();
    out.set_name(full);
    out.set_data_type(onnx::TensorProto::INT64);
    out.add_dims(static_cast<std::int64_t>(values.size()));
    out.set_raw_data(values.data(), values.size() * sizeof values[0]);
    return full;
  }

  std::vector<Value> add(const char* op, std::vector<Value> inputs, Attributes attributes,
                         std::size_t outputs) override {
    onnx::NodeProto& out = *onnx_graph().add_node();
    out.set_op_type(op);
    out.set_name(unique(op));
    for (const Value& in : inputs) out.add_input(in);
    std::vector<Value> names;
    for (std::size_t i = 0; i < outputs; ++i)
      out.add_output(names.emplace_back(i == 0 ? out.name() : fmt::format("{}:{}", out.name(), i)));
    for (const auto& [name, value] : attributes) set(*out.add_attribute(), name, value);
    return names;
  }

  bool has_state() const override { return options_.has_state; }

  Value state(const char* suffix, std::int64_t features) override {
    const Value name = node().name + "." + suffix;
    declare(*onnx_graph().add_input(), name, onnx::TensorProto::FLOAT, state_dimensions(features));
    return name;
  }

  void set_state(const char* suffix, std::int64_t features, const Value& value) override {
    states_.push_back({value, node().name + "." + suffix + ".after", features});
  }

  void output(const Value& value) override { outputs_.resize(node_ + 1, value); }

 private:
  const Node& node() const { return graph_.nodes[node_]; }
  onnx::GraphProto& onnx_graph() { return *model_.mutable_graph(); }

  /// "layer1.0.conv1/Conv", with a number if there is one already.
  Value unique(const char* what) {
    const std::string stem = fmt::format("{}/{}", node().name, what);
    std::string name = stem;
    for (int i = 2; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", stem, i);
    return name;
  }

  struct Tensor {
    std::string name;
    const Shape& shape;
    std::span<const float> values;  // in PyTorch's order
  };
  Tensor find(const char* suffix) {
    const std::string name = node().name + "." + suffix;
    for (const std::size_t t : node().tensors) {
      const TensorInfo& tensor = graph_.tensor(node(), t);
      if (!tensor.name.ends_with(fmt::format(".{}", suffix))) continue;
      const std::span<const float> values =
          (node().frozen ? frozen_ : parameters_)
              .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.elements));
      if (tensor.kind != TensorKind::conv)  // only convolutions have another order in memory
        return {tensor.name, tensor.shape, values};
      std::vector<float>& ordered = ordered_.emplace_back(static_cast<std::size_t>(tensor.elements));
      to_pytorch_order(tensor, values.data(), ordered.data());
      return {tensor.name, tensor.shape, ordered};
    }
    for (const std::size_t b : node().buffers)
      if (graph_.buffers[b].name == name) return {name, graph_.buffers[b].shape, buffers_.at(b).values};
    throw Error(fmt::format("there is no tensor {}", name));
  }

  void store(const std::string& name, const Shape& shape, std::span<const float> values) {
    onnx::TensorProto& out = *onnx_graph().add_initializer();
    out.set_name(name);
    out.set_data_type(onnx::TensorProto::FLOAT);
    for (const std::int64_t d : shape) out.add_dims(d);
    out.set_raw_data(values.data(), values.size_bytes());
  }

  static void set(onnx::AttributeProto& out, const char* name, const Attribute& value) {
    out.set_name(name);
    if (const auto* i = std::get_if<std::int64_t>(&value)) {
      out.set_type(onnx::AttributeProto::INT);
      out.set_i(*i);
    } else if (const auto* d = std::get_if<double>(&value)) {
      out.set_type(onnx::AttributeProto::FLOAT);
      out.set_f(static_cast<float>(*d));
    } else {
      out.set_type(onnx::AttributeProto::INTS);
      for (const std::int64_t one : std::get<std::vector<std::int64_t>>(value)) out.add_ints(one);
    }
  }

  static void declare(onnx::ValueInfoProto& out, const std::string& name, int type,
                      const Dimensions& dimensions) {
    out.set_name(name);
    onnx::TypeProto::Tensor& tensor = *out.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(type);
    for (const std::string& d : dimensions) {
      onnx::TensorShapeProto::Dimension& dim = *tensor.mutable_shape()->add_dim();
      if (is_number(d))
        dim.set_dim_value(std::stoll(d));
      else
        dim.set_dim_param(d);
    }
  }

  /// With the batch, images as (C, H, W), and the number of frames open if nothing depends on it.
  Dimensions dimensions(const Shape& shape) const {
    Dimensions out{"batch"};
    if (shape.size() == 3)
      for (const std::size_t i : {2, 0, 1}) out.push_back(std::to_string(shape[i]));
    else
      for (const std::int64_t d : shape) out.push_back(std::to_string(d));
    if (has_open_frames() && (shape.size() == 2 || is_tokens(shape))) out[1] = "frames";
    return out;
  }

  bool is_tokens(const Shape& shape) const { return reads_tokens() && shape == graph_.input; }

  bool reads_tokens() const {
    return std::ranges::any_of(graph_.nodes, [](const Node& one) {
      return one.layer && one.inputs == std::vector<std::size_t>{0} && one.layer->reads_tokens();
    });
  }

  /// Whether sequences stay sequences up to the scores.
  bool has_open_frames() const { return graph_.is_sequence() && graph_.nodes.back().shape.size() == 2; }

  void write_input() {
    declare(*onnx_graph().add_input(), "input",
            reads_tokens() ? onnx::TensorProto::INT64 : onnx::TensorProto::FLOAT, dimensions(graph_.input));
    outputs_.push_back("input");
  }

  /// Gives a value the name of an output of the model.
  void name_value(const Value& value, const std::string& name, const Dimensions& dimensions) {
    onnx::NodeProto& out = *onnx_graph().add_node();
    out.set_op_type("Identity");
    out.set_name(name);
    out.add_input(value);
    out.add_output(name);
    declare(*onnx_graph().add_output(), name, onnx::TensorProto::FLOAT, dimensions);
  }

  static Dimensions state_dimensions(std::int64_t features) {
    return {"1", "batch", std::to_string(features)};
  }

  static std::string text(const onnx::ValueInfoProto& value) {
    const onnx::TypeProto::Tensor& tensor = value.type().tensor_type();
    std::vector<std::string> shape;
    for (const auto& dim : tensor.shape().dim())
      shape.push_back(dim.has_dim_param() ? dim.dim_param() : std::to_string(dim.dim_value()));
    return fmt::format("{}: {} ({})", value.name(),
                       tensor.elem_type() == onnx::TensorProto::INT64 ? "int64" : "float32",
                       fmt::join(shape, ", "));
  }

  void describe(OnnxSummary& summary) {
    summary.opset = opset;
    summary.operators = static_cast<std::size_t>(onnx_graph().node_size());
    for (const auto& in : onnx_graph().input()) summary.inputs.push_back(text(in));
    for (const auto& out : onnx_graph().output()) summary.outputs.push_back(text(out));
  }

  const Graph& graph_;
  const OnnxOptions& options_;
  std::span<const float> parameters_, frozen_;
  const std::vector<NamedBuffer>& buffers_;
  onnx::ModelProto model_;
  std::size_t node_ = 0;
  std::vector<Value> outputs_;              // of the nodes
  std::deque<std::vector<float>> ordered_;  // of this node's tensors, in PyTorch's order
  std::set<std::string> names_, stored_;    // of values; of tensors that are initializers
  struct State {
    Value value;
    std::string name;
    std::int64_t features;
  };
  std::vector<State> states_;  // after the pass: outputs behind the scores
};

}  // namespace

std::string onnx_model(const NetworkSpec& network, std::span<const float> parameters,
                       std::span<const float> frozen, const std::vector<NamedBuffer>& buffers,
                       const OnnxOptions& options, OnnxSummary* summary) {
  const std::int64_t all = network.parameters() + network.frozen_parameters();
  if (all > std::numeric_limits<std::int32_t>::max() / 4)
    throw Error(fmt::format("{} parameters do not fit into an ONNX file, which holds 2 GB at most", all));
  const onnx::ModelProto model =
      OnnxWriter(network.graph(), parameters, frozen, buffers, options).write(network.name(), summary);
  std::string bytes;
  if (!model.SerializeToString(&bytes))
    throw Error("the network does not fit into an ONNX file, which holds 2 GB at most");
  return bytes;
}

}  // namespace lpsgd
