// The choice of a convolution's engine and layout. Of what cuDNN offers for a shape, the fastest on this
// device is taken. It is measured once, on the memory of the operation, within a budget of time
// (nn/plan_search.h).
#pragma once

#include <functional>
#include <string>

#include "nn/cuda/conv_run.h"

namespace lpsgd::cuda {

/// How to run a problem, whose operation has `tensors`. `separate` queues bias and ReLU, for plans that do
/// not include them. A choice is kept in the context and in its plan cache, and described in
/// Context::choices.
///
/// float32 may also take tensors in NCHW, which are transposed in the workspace, and engines that transform
/// their operands, if they are accurate (nn/cuda/conv_accuracy.h). With Context::deterministic neither is
/// done, and nothing is measured: the first engine that runs is taken. DeviceError if there is none.
ConvChoice choose_conv(Context& context, const ConvProblem& problem, const ConvTensors& tensors,
                       const std::function<void()>& separate);

}  // namespace lpsgd::cuda
