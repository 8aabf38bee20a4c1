#include "nn/graph_builder.h"

#include <fmt/format.h>

#include <utility>

namespace lpsgd {

namespace {

constexpr std::size_t max_layers = 20'000;
constexpr std::int64_t max_parameters = std::int64_t{1} << 36;

std::string layer_path(const std::string& name) {
  return fmt::format("layer '{}'", name);
}

}  // namespace

GraphBuilder::GraphBuilder(const std::string& name, const Shape& input, const config::Origin& input_origin) {
  if (input.empty() || input.size() > 3)
    config::fail(
        input_origin, "input",
        fmt::format("expected [H, W, C], [frames, features] or [features], got {} numbers", input.size()));
  if (!elements_of(input)) config::fail(input_origin, "input", "is too large");
  graph_.name = name;
  graph_.input = input;
  Node node;
  node.name = "in";
  node.shape = input;
  node.origin = input_origin;
  graph_.nodes.push_back(std::move(node));
}

std::size_t GraphBuilder::add(const std::string& name, const char* kind, std::unique_ptr<Layer> layer,
                              const std::vector<std::size_t>& inputs, std::optional<std::size_t> weight_of,
                              const config::Origin& origin) {
  if (graph_.nodes.size() > max_layers)
    config::fail(origin, name, fmt::format("the network has more than {} layers", max_layers));
  const auto refuse = [&](const std::string& what) { config::fail(origin, layer_path(name), what); };
  Node node;
  node.name = name;
  node.kind = kind;
  node.origin = origin;
  node.inputs = inputs;
  node.frozen = !layer->is_trained();
  if (layer->reads_tokens() && inputs != std::vector<std::size_t>{0})
    refuse("reads token numbers, which only the network's input holds (input: in)");
  std::vector<Shape> shapes;
  for (const std::size_t i : inputs) shapes.push_back(graph_.nodes[i].shape);
  try {
    node.shape = layer->infer(shapes);
  } catch (const LayerError& e) {
    refuse(e.what());
  }
  if (!elements_of(node.shape)) refuse(fmt::format("its output {} is too large", shape_text(node.shape)));
  for (const ParameterSpec& p : layer->parameters()) {
    if (weight_of && node.tensors.empty()) {
      if (const std::string why = cannot_lend(*weight_of, p); !why.empty()) refuse(why);
      graph_.nodes[*weight_of].lends = node.borrows = true;
      node.tensors.push_back(graph_.nodes[*weight_of].tensors[0]);
      continue;
    }
    const auto elements = elements_of(p.shape);
    if (!elements) refuse(fmt::format("its {} {} is too large", p.suffix, shape_text(p.shape)));
    node.tensors.push_back(graph_.add(node, {name + "." + p.suffix, p.kind, p.shape, *elements}, p.init));
    if (graph_.parameters + graph_.frozen_arena > max_parameters)
      refuse("the network has too many parameters");
  }
  for (const BufferSpec& b : layer->buffers()) {
    node.buffers.push_back(graph_.buffers.size());
    graph_.buffers.push_back({name + "." + b.suffix, b.shape, b.initial});
  }
  for (const CarriedSpec& c : layer->carried()) {
    node.carried.push_back(graph_.carried.size());
    graph_.carried.push_back({name + "." + c.suffix, c.shape});
  }
  node.layer = std::move(layer);
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.size() - 1;
}

std::string GraphBuilder::cannot_lend(std::size_t from, const ParameterSpec& wanted) const {
  const Node& owner = graph_.nodes[from];
  const auto takes = [&](const std::string& what) {
    return fmt::format("takes the weight of '{}', {}", owner.name, what);
  };
  if (!owner.layer || !owner.layer->can_share_weight()) return takes("but only an embedding's can be shared");
  if (owner.lends) return takes("which another layer has taken already");
  const Shape& shape = graph_.tensors[owner.tensors[0]].shape;
  if (shape == wanted.shape) return "";
  return takes(fmt::format("which is {}, but needs {}", shape_text(shape), shape_text(wanted.shape)));
}

std::size_t Graph::add(const Node& node, TensorInfo tensor, const Init& init) {
  constexpr std::int64_t alignment = 16;  // floats: every tensor starts on a multiple of 64 bytes
  std::int64_t& end = node.frozen ? frozen_arena : arena;
  tensor.offset = end;
  end += (tensor.elements + alignment - 1) / alignment * alignment;
  if (!node.frozen) parameters += tensor.elements;
  std::vector<TensorInfo>& list = node.frozen ? frozen : tensors;
  (node.frozen ? frozen_inits : inits).push_back(init);
  list.push_back(std::move(tensor));
  return list.size() - 1;
}

Graph GraphBuilder::finish(std::size_t last, std::int64_t classes, const config::Origin& layers_origin) {
  graph_.classes = classes;
  if (last == 0) config::fail(layers_origin, "layers", "the network has no layer");
  const Node& end = graph_.nodes[last];
  if (end.shape.size() > 2 || end.shape.back() != graph_.classes)
    config::fail(end.origin, layer_path(end.name),
                 fmt::format("the last layer gives {}, but the network has {} classes", shape_text(end.shape),
                             graph_.classes));
  if (graph_.input.size() == 3 && end.shape.size() != 1)
    config::fail(
        end.origin, layer_path(end.name),
        fmt::format("the last layer gives scores of {} frames, but an image has one class; select_frame "
                    "takes one frame, mean_frames their mean",
                    end.shape[0]));
  std::vector<bool> is_read(graph_.nodes.size(), false);
  is_read[last] = true;
  for (const Node& node : graph_.nodes)
    for (const std::size_t i : node.inputs) is_read[i] = true;
  for (std::size_t i = 0; i < is_read.size(); ++i)
    if (!is_read[i])
      config::fail(graph_.nodes[i].origin, layer_path(graph_.nodes[i].name), "nothing reads its output");
  return std::move(graph_);
}

}  // namespace lpsgd
