#include "nn/network_spec.h"

#include <algorithm>

#include "nn/graph.h"

namespace lpsgd {

NetworkSpec::NetworkSpec(const config::Value& value, std::optional<std::int64_t> frames)
    : graph_(std::make_unique<Graph>(read_graph(value, frames))) {
  list_layers();
}

void NetworkSpec::freeze(const std::vector<std::string>& names) {
  lpsgd::freeze(*graph_, names);
  list_layers();
}

void NetworkSpec::list_layers() {
  layers_.clear();
  for (const Node& node : graph_->nodes) {
    if (!node.layer) continue;
    LayerInfo info{node.name, node.kind, node.shape, 0, node.layer->flops(), node.frozen};
    if (node.borrows)
      info.weight_of = std::ranges::find_if(graph_->nodes, [&](const Node& n) {
                         return n.lends && n.tensors[0] == node.tensors[0];
                       })->name;
    for (const std::size_t t : node.own_tensors()) info.parameters += graph_->tensor(node, t).elements;
    layers_.push_back(std::move(info));
  }
}

NetworkSpec::~NetworkSpec() = default;
NetworkSpec::NetworkSpec(NetworkSpec&&) noexcept = default;

const std::string& NetworkSpec::name() const {
  return graph_->name;
}
const std::vector<std::int64_t>& NetworkSpec::input_shape() const {
  return graph_->input;
}
bool NetworkSpec::has_open_frames() const {
  return graph_->has_open_frames;
}
bool NetworkSpec::is_sequence() const {
  return graph_->is_sequence();
}
std::int64_t NetworkSpec::classes() const {
  return graph_->classes;
}
const std::vector<TensorInfo>& NetworkSpec::tensors() const {
  return graph_->tensors;
}
const std::vector<TensorInfo>& NetworkSpec::frozen_tensors() const {
  return graph_->frozen;
}
std::int64_t NetworkSpec::parameters() const {
  return graph_->parameters;
}
std::int64_t NetworkSpec::frozen_parameters() const {
  std::int64_t sum = 0;
  for (const TensorInfo& tensor : graph_->frozen) sum += tensor.elements;
  return sum;
}
std::int64_t NetworkSpec::flops() const {
  std::int64_t sum = 0;
  for (const LayerInfo& layer : layers_)
    if (__builtin_add_overflow(sum, layer.flops, &sum)) return INT64_MAX;
  return sum;
}

}  // namespace lpsgd
