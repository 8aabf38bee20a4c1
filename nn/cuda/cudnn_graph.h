// cuDNN's graph API, as far as convolutions need it: descriptors with one owner, the graph of a convolution,
// the engines that cuDNN offers for it, and plans that run.
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

/// Owns a descriptor. Attributes are set, then it is finalized and never changed again.
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

enum class ConvPass : std::uint8_t { forward, input_gradient, weight_gradient };

/// A convolution's pass: what a plan is made for, and under which it is remembered.
struct ConvProblem {
  ConvPass pass = ConvPass::forward;
  Compute compute = Compute::fp32;
  DataType type = DataType::f32;           // of activations and weights
  DataType gradient_type = DataType::f32;  // of the weights' gradient
  std::int64_t batch = 1;
  Shape in, out;  // (H, W, C)
  Size2 kernel, stride, pad;
  std::int64_t groups = 1;
  bool bias = false, relu = false;  // of forward, in the same plan
  bool deterministic = false;

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

/// Names of a plan's tensors, in cuDNN's sense.
enum ConvTensor : std::int64_t { conv_input = 1, conv_weights, conv_output, conv_bias };

/// A convolution ready to run. The gradients of a tensor go by the tensor's name.
class ConvPlan {
 public:
  ConvPlan(Descriptor engine, Descriptor plan, std::int64_t workspace, std::string text)
      : engine_(std::move(engine)), plan_(std::move(plan)), workspace_(workspace), text_(std::move(text)) {}
  const Descriptor& plan() const { return plan_; }
  std::int64_t workspace() const { return workspace_; }
  const std::string& text() const { return text_; }  // the engine: "engine 34"

 private:
  Descriptor engine_;  // the plan's configuration: cuDNN does not say that the plan keeps it
  Descriptor plan_;
  std::int64_t workspace_;
  std::string text_;
};

/// The graph of a problem, and cuDNN's engine configurations for it, the promising ones first.
class ConvGraph {
 public:
  /// Where plans will run: a handle, or for planning without a device the description of one.
  struct Target {
    cudnnHandle_t handle = nullptr;
    const Descriptor* device = nullptr;
  };
  /// DeviceError where cuDNN does not take the graph.
  ConvGraph(const ConvProblem& problem, const Target& target);
  /// Those whose arithmetic is the problem's: fp32 multiplies float32 without rounding it first, and
  /// deterministic ones add in a fixed order.
  std::vector<Descriptor> engines() const;
  /// Nothing where cuDNN then finds that the engine cannot do it.
  std::optional<ConvPlan> plan(Descriptor engine) const;

 private:
  void heuristics(cudnnBackendHeurMode_t mode, std::vector<Descriptor>& out) const;
  bool allows(const Descriptor& engine_configuration) const;

  ConvProblem problem_;
  Target target_;
  std::vector<Descriptor> parts_;  // what the graph refers to
  Descriptor graph_;
};

/// Which memory a plan's run reads and writes.
Descriptor bind_plan(const std::vector<std::pair<ConvTensor, const void*>>& tensors, void* workspace);

}  // namespace lpsgd::cuda
