// cuDNN's graph API as far as convolutions need it: descriptors, the graph of a convolution, the engines that
// cuDNN offers for it, and plans that can run.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/data_type.h"
#include "nn/compute.h"
#include "nn/shape.h"

namespace lpsgd::cuda {

/// Owns a descriptor. Set its attributes first, then finalize it. It does not change after that.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  cudnnBackendDescriptor_t get() const { return handle_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, std::int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, float value) { set(name, CUDNN_TYPE_FLOAT, 1, &value); }
  /// DeviceError.
  void finalize();
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(handle_); }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// The order of a tensor's dimensions in cuDNN's memory. Filters are OHWI or OIHW.
enum class Layout : std::uint8_t { nhwc, nchw };

enum class ConvPass : std::uint8_t { forward, input_gradient, weight_gradient };

/// A pass of a convolution: what a plan is made for. Plans are stored by its key().
struct ConvProblem {
  ConvPass pass = ConvPass::forward;
  Compute compute = Compute::fp32;
  DataType type = DataType::f32;           // of activations and weights
  DataType gradient_type = DataType::f32;  // of the weights' gradient
  std::int64_t batch = 1;
  Shape in, out;  // (H, W, C)
  Size2 kernel, stride, pad;
  std::int64_t groups = 1;
  bool bias = false, relu = false;  // of forward, included in the plan
  bool deterministic = false;
  Layout layout = Layout::nhwc;  // of the plan's tensors; a part of the choice, so not of key()

  auto key() const {
    return std::vector<std::int64_t>{static_cast<std::int64_t>(pass),
                                     static_cast<std::int64_t>(compute),
                                     static_cast<std::int64_t>(type),
                                     static_cast<std::int64_t>(gradient_type),
                                     batch,
                                     in[0],
                                     in[1],
                                     in[2],
                                     out[0],
                                     out[1],
                                     out[2],
                                     kernel.h,
                                     kernel.w,
                                     stride.h,
                                     stride.w,
                                     pad.h,
                                     pad.w,
                                     groups,
                                     bias,
                                     relu,
                                     deterministic};
  }
};

/// Goes up when there are other candidates than before (ConvGraph::engines(), plan_small_conv()) or our own
/// kernels change, so that stored choices are not taken.
constexpr int engine_policy = 8;

/// The identifiers of a plan's tensors.
enum ConvTensor : std::int64_t { conv_input = 1, conv_weights, conv_output, conv_bias };

/// A configuration of an engine that cuDNN offers.
struct ConvEngine {
  Descriptor configuration;
  /// "FFT", "Winograd 4x4" and the like if it transforms its operands in a way that may add rounding errors,
  /// so that its results must be checked (nn/cuda/conv_accuracy.h). Empty: its errors are those of sums.
  std::string transform;
};

/// A convolution that is ready to run. The gradient of a tensor has the tensor's identifier.
class ConvPlan {
 public:
  ConvPlan(Descriptor engine, Descriptor plan, std::int64_t workspace, std::string text)
      : engine_(std::move(engine)), plan_(std::move(plan)), workspace_(workspace), text_(std::move(text)) {}
  const Descriptor& plan() const { return plan_; }
  std::int64_t workspace() const { return workspace_; }
  /// The engine, its knobs and its transform: "engine 34, 2=1 5=0, FFT".
  const std::string& text() const { return text_; }

 private:
  Descriptor engine_;  // the configuration of the plan; cuDNN does not promise that the plan keeps it
  Descriptor plan_;
  std::int64_t workspace_;
  std::string text_;
};

/// The graph of a problem, and cuDNN's engine configurations for it.
class ConvGraph {
 public:
  /// Where plans will run: a handle, or the description of a device to plan without one.
  struct Target {
    cudnnHandle_t handle = nullptr;
    const Descriptor* device = nullptr;
  };
  /// DeviceError if cuDNN does not support the graph.
  ConvGraph(const ConvProblem& problem, const Target& target);
  /// The engines with the arithmetic of the problem, those that cuDNN expects to be fastest first. With fp32,
  /// no engine rounds its float32 operands. With `deterministic`, all add in a fixed order. With bf16 or
  /// `deterministic`, none has a transform.
  std::vector<ConvEngine> engines() const;
  /// Nothing if cuDNN finds that the engine does not support the graph.
  std::optional<ConvPlan> plan(ConvEngine engine) const;

 private:
  void heuristics(cudnnBackendHeurMode_t mode, std::vector<ConvEngine>& out) const;
  /// An engine's transform, or nothing if the engine is not allowed.
  std::optional<std::string> allowed_transform(const Descriptor& configuration) const;

  ConvProblem problem_;
  Target target_;
  std::vector<Descriptor> parts_;  // that the graph refers to
  Descriptor graph_;
};

/// Binds the memory that a run of a plan reads and writes.
Descriptor bind_plan(const std::vector<std::pair<ConvTensor, const void*>>& tensors, void* workspace);

}  // namespace lpsgd::cuda
