// The choice of a convolution's engine and layout. Of what cuDNN offers for a shape, and our own kernels
// where they cover it (nn/cuda/small_conv.h), the fastest on this device is taken. It is measured once, on
// the memory of the operation, within a budget of time (nn/plan_search.h).
#pragma once

#include <functional>
#include <string>

#include "nn/cuda/conv_run.h"

namespace lpsgd::cuda {

/// "128 images 32x32x16, window 3x3, ...".
std::string text_of(const ConvProblem& problem);

/// How to run a problem, whose operation has `tensors`, or `own` for our own kernel. `separate` queues what
/// comes behind plans that are not fused: bias and ReLU, or the conversion of the weights' gradient. A choice
/// is kept in the context and in its plan cache, and described in Context::choices.
///
/// float32 may also take tensors in NCHW, which are transposed in the workspace, and engines that transform
/// their operands, if they are accurate (nn/cuda/conv_accuracy.h). With Context::deterministic neither is
/// done, and nothing is measured: our own kernel is taken, or else the first engine that runs. DeviceError if
/// there is none.
ConvChoice choose_conv(Context& context, const ConvProblem& problem, const ConvTensors& tensors,
                       const SmallConvTensors& own, const std::function<void()>& separate);

}  // namespace lpsgd::cuda
