// The graph that a network file describes, after parameters and repetition have been expanded. Nodes are in
// the order of definition. Each reads earlier nodes, and every shape is known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"
#include "nn/layer.h"
#include "nn/shape.h"

namespace lpsgd {

/// A layer with its name, its inputs and its tensors. Node 0 is the network's input and has no layer.
struct Node {
  std::string name;  // full: "layer1.0.conv1"
  const char* kind = "input";
  config::Origin origin;
  std::unique_ptr<Layer> layer;
  std::vector<std::size_t> inputs;   // nodes
  Shape shape;                       // of the output for one sample
  bool frozen = false;               // computes as in evaluation, and none of its tensors is trained
  std::vector<std::size_t> tensors;  // indices into Graph::tensors, or of a frozen layer into Graph::frozen
  bool borrows = false;              // tensors[0] is that of an earlier layer (Layer::weight_of)
  bool lends = false;                // tensors[0] is also that of a later layer
  std::vector<std::size_t> buffers;  // indices into Graph::buffers
  std::vector<std::size_t> carried;  // indices into Graph::carried

  /// Those that no earlier layer has.
  std::span<const std::size_t> own_tensors() const { return std::span(tensors).subspan(borrows ? 1 : 0); }
};

/// A tensor that is not trained: it belongs to the model, or is carried from pass to pass.
struct GraphBuffer {
  std::string name;  // "bn1.running_mean"
  Shape shape;
  float initial = 0;
};

struct Graph {
  std::string name;
  Shape input;                   // of one sample
  bool has_open_frames = false;  // the file leaves the number of frames to the run
  std::int64_t classes = 0;
  std::vector<Node> nodes;
  std::vector<TensorInfo> tensors;  // that are trained
  std::vector<Init> inits;          // one for each of them
  std::vector<TensorInfo> frozen;   // that are not: offsets are in an arena of their own
  std::vector<Init> frozen_inits;
  std::vector<GraphBuffer> buffers;
  std::vector<GraphBuffer> carried;  // shapes of one sample
  std::int64_t parameters = 0;       // values of the tensors that are trained
  std::int64_t arena = 0;            // floats of their arena, padding included
  std::int64_t frozen_arena = 0;

  /// Adds a tensor of the node, and returns its index. The offset is set.
  std::size_t add(const Node& node, TensorInfo tensor, const Init& init);
  /// Tensor `t` of the node.
  const TensorInfo& tensor(const Node& node, std::size_t t) const {
    return node.frozen ? frozen[t] : tensors[t];
  }
  const Init& init(const Node& node, std::size_t t) const { return node.frozen ? frozen_inits[t] : inits[t]; }
  /// Whether a sample is a sequence, (frames, features) or token numbers.
  bool is_sequence() const;
};

/// Freezes the layers with these names, and those in blocks with these names (core/name_patterns.h). Layers
/// that are never trained stay frozen.
/// ConfigError if a name stands for no layer, if a layer in front of a frozen one is trained, or if none is
/// left to train.
void freeze(Graph& graph, const std::vector<std::string>& names);

/// Reads and checks the tree of a network file. `frames` is the number for a file that leaves it to the run,
/// and 1 by default. Throws ConfigError, also if `frames` is not what the file says.
Graph read_graph(const config::Value& value, std::optional<std::int64_t> frames = {});

}  // namespace lpsgd
