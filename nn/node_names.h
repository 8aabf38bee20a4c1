// The names of layers and blocks in a network file, and the node of the graph that each stands for.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/config.h"

namespace lpsgd {

/// The list of layers that is being expanded: the network's, or that of one repetition of a block.
struct LayerList {
  const config::Value& entries;
  std::string prefix;     // of the names of its layers: "layer1.0.", empty for the network's
  std::size_t input = 0;  // the node that the word `in` stands for
};

class NodeNames {
 public:
  /// Makes `name` stand for `node`.
  void set(const std::string& name, std::size_t node) { nodes_[name] = node; }

  bool contains(const std::string& name) const { return nodes_.contains(name); }

  /// The full name that `label` gives a layer of `list`. Throws ConfigError if it is not a valid name or
  /// is in use.
  std::string named(const config::Value& label, const LayerList& list, const std::string& path) const;
  /// A full name made from the kind of a layer that has none: "relu", "relu_2", ...
  std::string numbered(const std::string& kind, const LayerList& list);

  /// The nodes that a layer's `input` names: one name, or a list of names. If it is null, the layer reads
  /// `previous`. Throws ConfigError if there is no such layer above this one.
  std::vector<std::size_t> resolve(const config::Value& input, const std::string& layer,
                                   const LayerList& list, std::size_t previous) const;
  /// The node that a layer's `weight_of` names, likewise.
  std::size_t weight_of(const config::Value& owner, const std::string& layer, const LayerList& list) const {
    return find(owner, layer, layer + ".weight_of", list, "takes the weight of");
  }

 private:
  /// `path` is the key that has the name, `verb` what the layer does to what it names.
  std::size_t find(const config::Value& name, const std::string& layer, const std::string& path,
                   const LayerList& list, const char* verb) const;

  std::map<std::string, std::size_t> nodes_;  // by full name
  std::map<std::string, int> counts_;         // of the names that numbered() has made
};

/// Whether `name` has only letters, digits, '_', '-' and single dots, none of them at an end.
bool is_valid_name(const std::string& name);

}  // namespace lpsgd
