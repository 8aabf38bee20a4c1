// Builds a graph node by node: infers shapes, lays out the parameters, and checks the finished graph.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/graph.h"

namespace lpsgd {

class GraphBuilder {
 public:
  /// `input_origin` is where the file gives the shape of the input. Throws ConfigError if that has not one to
  /// three dimensions or too many elements.
  GraphBuilder(const std::string& name, const Shape& input, const config::Origin& input_origin);

  /// Adds a layer that reads `inputs` and returns its node. `weight_of`: the node whose first tensor is also
  /// this layer's first. Throws ConfigError if the layer does not accept its inputs or that tensor, or a
  /// tensor or the network becomes too large.
  std::size_t add(const std::string& name, const char* kind, std::unique_ptr<Layer> layer,
                  const std::vector<std::size_t>& inputs, std::optional<std::size_t> weight_of,
                  const config::Origin& origin);

  const Shape& shape(std::size_t node) const { return graph_.nodes[node].shape; }

  /// The finished graph, whose class scores are the output of node `last`. Throws ConfigError if `last` does
  /// not have a score for each of the classes, or if nothing reads the output of another node.
  /// `layers_origin` is where the file has its list of layers.
  Graph finish(std::size_t last, std::int64_t classes, const config::Origin& layers_origin);

 private:
  /// Why the node `from` cannot lend its first tensor to a layer that needs `wanted`; "" if it can.
  std::string cannot_lend(std::size_t from, const ParameterSpec& wanted) const;

  Graph graph_;
};

}  // namespace lpsgd
