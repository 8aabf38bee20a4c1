// A network with its weights as an ONNX model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/network.h"
#include "nn/network_spec.h"

namespace lpsgd {

struct OnnxOptions {
  /// What recurrent layers carry from pass to pass is input and output of the model. Otherwise every sequence
  /// starts from zeros.
  bool has_state = false;
  std::map<std::string, std::string> metadata;  // the model's metadata_props
};

/// What `onnx_model` made, for messages.
struct OnnxSummary {
  std::int64_t opset = 0;
  std::size_t operators = 0;
  std::vector<std::string> inputs, outputs;  // "input: float32 (batch, 3, 32, 32)"
};

/// The bytes of the model (ONNX's protobuf), IR version 7, operator set 13. Its input is called `input`:
/// images (batch, C, H, W), scaled as the network was trained with them; frames (batch, frames, features);
/// token numbers int64 (batch, frames). Its output is called `scores`: (batch, classes) or (batch, frames,
/// classes), before the softmax. Batch and frames are open. Weights have the names of `tensors`, and
/// PyTorch's order. `parameters` and `frozen` are the arenas of the tensors that are trained, and of the
/// others. Throws Error if the model is larger than protobuf's 2 GB.
std::string onnx_model(const NetworkSpec& network, std::span<const float> parameters,
                       std::span<const float> frozen, const std::vector<NamedBuffer>& buffers,
                       const OnnxOptions& options, OnnxSummary* summary = nullptr);

}  // namespace lpsgd
