// The description of a network, read from its file: layers, tensors, shapes and costs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"

namespace lpsgd {

struct Graph;

/// One row of `lpsgd show`: a layer after parameters and repetition have been expanded.
struct LayerInfo {
  std::string name;                 // "layer1.0.conv1"
  std::string kind;                 // "conv", "batch_norm", "relu", ...
  std::vector<std::int64_t> shape;  // of the output for one sample: (H, W, C), (frames, features), (features)
  std::int64_t parameters = 0;
  std::int64_t flops = 0;  // of forward for one sample; a multiply-add counts as 2
  bool frozen = false;
  std::string weight_of = "";  // the layer whose weight it shares, if any
};

/// A network's description with every shape inferred. It needs no device and no memory for parameters.
class NetworkSpec {
 public:
  /// Reads and checks the YAML tree of a network file (docs/networks.md). Throws ConfigError, which names the
  /// place in the file and the layer.
  /// A file may leave the number of frames to the run (`input: [any, ...]`): it is `frames`, or 1. For
  /// another file ConfigError if `frames` is not the file's number.
  explicit NetworkSpec(const config::Value& value, std::optional<std::int64_t> frames = {});
  ~NetworkSpec();
  NetworkSpec(NetworkSpec&&) noexcept;
  /// Freezes the layers and blocks with these names: see freeze() in nn/graph.h.
  void freeze(const std::vector<std::string>& names);

  const std::string& name() const;
  const std::vector<std::int64_t>& input_shape() const;  // of one sample
  bool has_open_frames() const;                          // the file leaves the number of frames to the run
  bool is_sequence() const;                              // (frames, features), or token numbers
  std::int64_t classes() const;
  const std::vector<LayerInfo>& layers() const { return layers_; }
  const std::vector<TensorInfo>& tensors() const;         // those that are trained, in order
  const std::vector<TensorInfo>& frozen_tensors() const;  // the others, likewise
  std::int64_t parameters() const;                        // of those that are trained
  std::int64_t frozen_parameters() const;
  std::int64_t flops() const;
  const Graph& graph() const { return *graph_; }  // nn/graph.h

 private:
  void list_layers();

  std::unique_ptr<Graph> graph_;
  std::vector<LayerInfo> layers_;
};

}  // namespace lpsgd
