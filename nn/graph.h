// The graph that a network file stands for, after parameters and repetition are expanded: nodes in the order
// of definition, each fed by earlier ones, with every shape known.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"
#include "nn/layer.h"
#include "nn/network.h"

namespace lpsgd {

/// A layer in its place. Node 0 is the network's input and has no layer.
struct Node {
  std::string name;  // full, "layer1.0.conv1"
  const char* kind = "input";
  config::Origin origin;
  std::unique_ptr<Layer> layer;
  std::vector<std::size_t> inputs;   // nodes
  Shape shape;                       // of the output for one sample
  std::vector<std::size_t> tensors;  // in Graph::tensors
  std::vector<std::size_t> buffers;  // in Graph::buffers
};

struct GraphBuffer {
  std::string name;
  Shape shape;
  float initial = 0;
};

struct Graph {
  std::string name;
  Shape input;
  std::int64_t classes = 0;
  std::vector<Node> nodes;
  std::vector<TensorInfo> tensors;
  std::vector<Init> inits;  // beside `tensors`
  std::vector<GraphBuffer> buffers;
  std::int64_t parameters = 0;
  std::int64_t arena = 0;  // floats, padding included
};

/// Reads and checks the tree of a network file. ConfigError.
Graph read_graph(const config::Value& value);

struct NetworkSpec::Impl {
  Graph graph;
  std::vector<LayerInfo> layers;
  std::int64_t flops = 0;
};

/// The language's keys and every layer's options as Markdown tables, for docs/networks.md.
std::string network_reference();

}  // namespace lpsgd
