// A network: a graph of layers read from YAML, planned once for a batch size and a backend, then run step
// after step without allocation. Parameters and gradients are views into arenas; activations are NHWC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/tensor_info.h"

namespace lpsgd {

/// One row of `lpsgd show`: a layer after parameters and repetition are expanded.
struct LayerInfo {
  std::string name;                 // "layer1.0.conv1"
  std::string kind;                 // "conv", "batch_norm", "relu", ...
  std::vector<std::int64_t> shape;  // of its output for one sample: (H, W, C) or (features)
  std::int64_t parameters = 0;
  std::int64_t flops = 0;  // forward, one sample, multiply-add = 2
};

/// A network's description with every shape inferred; needs no backend and no memory for parameters.
class NetworkSpec {
 public:
  /// Reads and checks the YAML tree (docs/networks.md). A misfit names the layer. ConfigError.
  explicit NetworkSpec(const config::Value& value);
  ~NetworkSpec();
  NetworkSpec(NetworkSpec&&) noexcept;
  NetworkSpec& operator=(NetworkSpec&&) noexcept;

  const std::string& name() const;
  const std::vector<std::int64_t>& input_shape() const;  // one sample: (H, W, C)
  std::int64_t classes() const;
  const std::vector<LayerInfo>& layers() const;
  const std::vector<TensorInfo>& tensors() const;  // trainable, in order
  std::int64_t parameters() const;
  std::int64_t flops() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// A value that is not trained but belongs to the model: batch norm's running statistics.
struct NamedBuffer {
  std::string name;  // "bn1.running_mean"
  std::vector<std::int64_t> shape;
  std::span<float> values;
};

/// This rank's part of a global batch.
struct Samples {
  std::span<const float> inputs;         // (batch, input shape...); tokens are numbers, too
  std::span<const std::int32_t> labels;  // (batch); (batch, frames) where each frame has its class scores
  /// Frames of each sequence, from 1; what lies behind is not looked at. Empty: all are full.
  std::span<const std::int32_t> lengths = {};
};

/// Sums over the samples seen since take_metrics(); over frames where each frame is scored.
struct BatchMetrics {
  double loss = 0;  // sum over samples of the cross-entropy
  std::int64_t top1 = 0, top5 = 0, samples = 0;
};

/// Where time went: one operation's passes, summed since the last take_times(). The backward of a convolution
/// that is joined to the batch norm behind it (docs/add-a-layer.md) counts as the norm's.
struct OperationTime {
  std::string name;                  // of its layer, and of the last one fused into it: "bn1+act1"
  double forward = 0, backward = 0;  // seconds
};

/// The arithmetic of layers. bf16: activations, their gradients and a working copy of the weights are stored
/// as bfloat16; every layer computes and sums in float32. Weights, their gradients and statistics are float32
/// in either. tf32, of GPUs alone: products round their float32 operands to ten bits of fraction.
enum class Compute : std::uint8_t { fp32, tf32, bf16 };
/// Why the device cannot do it, and what it can; nothing where it can. DeviceError where it is not there.
std::optional<std::string> unsupported(Compute compute, Device device = Device::cpu());

struct NetworkOptions {
  std::int64_t batch = 1;  // samples per call, this rank's part
  std::int64_t first = 0;  // the first one's position in the global batch, for dropout
  std::uint32_t seed = 1;  // initial weights and dropout
  int threads = 1;         // of the CPU backend, for this rank
  Compute compute = Compute::fp32;
  bool inference_only = false;  // no gradients, no backward
  Device device = {};           // where it lies and runs
  /// On a GPU: only algorithms that add in a fixed order, chosen by cuDNN's rules and not by measurement.
  bool deterministic = false;
  /// On a GPU: passes are CUDA graphs from the third run on.
  bool cuda_graphs = true;
  /// On a GPU: fill take_times(), which costs a little time itself; nothing is captured. Always on the CPU.
  bool time_operations = false;
};

class Network {
 public:
  /// By oneDNN on the CPU, by cuDNN and cuBLASLt on a GPU. DeviceError where the device is not there, cannot
  /// do the arithmetic or has no room.
  Network(const NetworkSpec& spec, const NetworkOptions& options);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const std::vector<TensorInfo>& tensors() const;
  // On a device these are its memory: copy_values (core/device.h) brings them to the host.
  std::span<float> parameters();  // arena: tensors at their offsets, in memory order (O-H-W-I, out x in)
  std::span<const float> parameters() const;
  std::span<float> gradients();        // arena, laid out like parameters
  std::vector<NamedBuffer> buffers();  // running statistics, in order
  /// The order in which backward announces the tensors: the same on every rank and in every step.
  const std::vector<std::size_t>& announce_order() const;

  /// In training batch norm uses the batch's own statistics and updates the running ones, and dropout draws
  /// by `step`, counted from the run's start; in evaluation the first `valid` samples count.
  void forward_train(const Samples& samples, std::int64_t step);
  void forward_eval(const Samples& samples, std::int64_t valid);
  /// Gradients of the mean loss over the batch of the last forward_train. Calls announce(tensor) as soon as
  /// that tensor's gradient is final, in announce_order(): on a device, once its work is queued on stream().
  void backward(const std::function<void(std::size_t)>& announce);
  /// From now on backward announces on a device in groups: what lies between these tensors is launched in one
  /// launch, and announced behind it. In announce_order(); Error for a tensor that is not there.
  void announce_behind(std::span<const std::size_t> tensors);
  /// Waits for the device.
  BatchMetrics take_metrics();
  /// Class scores of the last forward before the softmax: (batch, classes) or (batch, frames, classes). A
  /// copy on the host, which the next forward outdates.
  std::span<const float> logits() const;
  /// The queue that passes run on: what announce() was called for has been queued there. On the CPU it is
  /// done.
  StreamView stream() const;
  /// Which algorithms the libraries run, a line each; empty where they leave no choice.
  std::vector<std::string> choices() const;
  /// How many passes, or parts of a pass, are CUDA graphs.
  std::size_t captured() const;
  /// Whether backward is a CUDA graph, so that it may be part of a larger graph (core/capture.h).
  bool is_backward_captured() const;
  std::vector<OperationTime> take_times();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Copies a tensor between memory order and PyTorch's (conv O-H-W-I <-> O-I-H-W; others are equal).
void to_pytorch_order(const TensorInfo& tensor, const float* memory, float* pytorch);
void from_pytorch_order(const TensorInfo& tensor, const float* pytorch, float* memory);

}  // namespace lpsgd
