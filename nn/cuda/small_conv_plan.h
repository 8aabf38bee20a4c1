// Which convolutions our own kernels (nn/cuda/small_conv.h) can compute, how they divide them, and their
// runs. They are candidates in the search for a convolution's algorithm, beside cuDNN's engines.
#pragma once

#include <optional>

#include "nn/cuda/cudnn_graph.h"
#include "nn/cuda/small_conv.h"

namespace lpsgd::cuda {

/// How a choice of them is named, among the names of cuDNN's engines.
inline constexpr const char* small_conv_name = "own 3x3 kernel";

/// Nothing if the kernels do not cover the problem, or not on a device of this compute capability. It depends
/// on nothing else.
std::optional<SmallConv> plan_small_conv(const ConvProblem& problem, int capability_major);

/// Bytes of workspace of a run.
std::int64_t small_conv_workspace(const SmallConv& conv, ConvPass pass);

/// The memory of a pass, named as in ConvTensor: the gradient of a tensor is in the tensor's place, but that
/// of the weights is `weight_gradient`, in float32.
struct SmallConvTensors {
  void* input = nullptr;
  const void* weights = nullptr;
  void* output = nullptr;
  const float* bias = nullptr;  // may be null
  bool relu = false;
  float* weight_gradient = nullptr;
  /// If there is one, forward and the gradient of the weights compute the input from it as they load it.
  NormInput norm = {};
};
cudaError_t run_small_conv(const SmallConv& conv, ConvPass pass, const SmallConvTensors& tensors,
                           void* workspace, cudaStream_t stream);
/// Forward with the statistics of a batch norm (launch_small_conv()).
cudaError_t run_small_conv(const SmallConv& conv, const SmallConvTensors& tensors, const NormState& state,
                           cudaStream_t stream);
/// The gradient of the input with the sums of the backward of `norm`, whose output the input is.
cudaError_t run_small_conv(const SmallConv& conv, const SmallConvTensors& tensors, const NormInput& norm,
                           const NormState& state, cudaStream_t stream);

}  // namespace lpsgd::cuda
