// Freezes layers of a graph: their tensors move to a list and an arena of their own.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/name_patterns.h"
#include "core/printable.h"
#include "nn/graph.h"

namespace lpsgd {

namespace {

/// The names of the layers, and of the tensors of those that have some.
std::vector<std::string> names_in(const Graph& graph) {
  std::vector<std::string> out;
  for (const Node& node : graph.nodes) {
    if (!node.layer) continue;
    out.push_back(node.name);
    for (const std::size_t t : node.own_tensors()) out.push_back(graph.tensor(node, t).name);
  }
  return out;
}

/// Which layers are named. ConfigError if a name is that of a single tensor.
std::vector<bool> named_layers(const Graph& graph, const NamePatterns& names) {
  std::vector<bool> out;
  for (const Node& node : graph.nodes) {
    out.push_back(node.layer && names.matches(node.name));
    if (out.back()) continue;
    for (const std::size_t t : node.own_tensors())
      if (names.matches(graph.tensor(node, t).name))
        throw ConfigError(fmt::format("'{}' is one tensor: layers are frozen as a whole, here '{}'",
                                      printable(graph.tensor(node, t).name), printable(node.name)));
  }
  return out;
}

/// Throws if a frozen layer reads what a trained one computes: backward would have to pass through it.
void check_order(const Graph& graph, const std::vector<bool>& frozen) {
  std::vector<std::size_t> trained(graph.nodes.size(), 0);  // per node: a trained layer in front of it, or 0
  for (std::size_t n = 1; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (const std::size_t i : node.inputs) trained[n] = std::max(trained[n], trained[i]);
    if (frozen[n] && !node.frozen && trained[n] != 0)
      throw ConfigError(fmt::format("'{}' cannot be frozen, because '{}' in front of it is trained",
                                    printable(node.name), printable(graph.nodes[trained[n]].name)));
    if (!frozen[n] && !node.frozen && !node.tensors.empty()) trained[n] = n;
  }
}

}  // namespace

void freeze(Graph& graph, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const NamePatterns patterns(names);
  if (const auto unused = patterns.unused(names_in(graph), {"no layer", "layers"}))
    throw ConfigError(*unused);
  const std::vector<bool> frozen = named_layers(graph, patterns);
  check_order(graph, frozen);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (frozen[n] && (graph.nodes[n].lends || graph.nodes[n].borrows))
      throw ConfigError(fmt::format("'{}' cannot be frozen, because it shares its weight with another layer",
                                    printable(graph.nodes[n].name)));

  const std::vector<TensorInfo> tensors = std::exchange(graph.tensors, {}),
                                fixed = std::exchange(graph.frozen, {});
  const std::vector<Init> inits = std::exchange(graph.inits, {}),
                          fixed_inits = std::exchange(graph.frozen_inits, {});
  graph.parameters = graph.arena = graph.frozen_arena = 0;
  std::vector<std::size_t> moved(tensors.size());  // new index of each tensor
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    if (node.frozen) {  // already
      for (std::size_t& t : node.tensors) t = graph.add(node, fixed[t], fixed_inits[t]);
      continue;
    }
    node.frozen = frozen[n];
    for (const std::size_t t : node.own_tensors()) moved[t] = graph.add(node, tensors[t], inits[t]);
    for (std::size_t& t : node.tensors) t = moved[t];
  }
  if (graph.tensors.empty()) throw ConfigError("no layer is left to train");
}

}  // namespace lpsgd
