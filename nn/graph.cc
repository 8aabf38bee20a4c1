// NetworkSpec: what the rest of the program sees of a graph.
#include "nn/graph.h"

#include <fmt/core.h>

namespace lpsgd {

NetworkSpec::NetworkSpec(const config::Value& value) : impl_(std::make_unique<Impl>()) {
  impl_->graph = read_graph(value);
  for (const Node& node : impl_->graph.nodes) {
    if (!node.layer) continue;
    LayerInfo info{node.name, node.kind, node.shape, 0, node.layer->flops()};
    for (const std::size_t t : node.tensors) info.parameters += impl_->graph.tensors[t].elements;
    impl_->flops += info.flops;
    impl_->layers.push_back(std::move(info));
  }
}

NetworkSpec::~NetworkSpec() = default;
NetworkSpec::NetworkSpec(NetworkSpec&&) noexcept = default;
NetworkSpec& NetworkSpec::operator=(NetworkSpec&&) noexcept = default;

const std::string& NetworkSpec::name() const {
  return impl_->graph.name;
}
const std::vector<std::int64_t>& NetworkSpec::input_shape() const {
  return impl_->graph.input;
}
std::int64_t NetworkSpec::classes() const {
  return impl_->graph.classes;
}
const std::vector<LayerInfo>& NetworkSpec::layers() const {
  return impl_->layers;
}
const std::vector<TensorInfo>& NetworkSpec::tensors() const {
  return impl_->graph.tensors;
}
std::int64_t NetworkSpec::parameters() const {
  return impl_->graph.parameters;
}
std::int64_t NetworkSpec::flops() const {
  return impl_->flops;
}

}  // namespace lpsgd
