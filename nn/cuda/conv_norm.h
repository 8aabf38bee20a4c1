// What a convolution by our own kernels does for the batch norm that writes its input, where nothing else
// reads it: the kernels compute the norm's output as they load it, so that it is never written; and the
// gradient of the input takes the sums of the norm's backward as it is stored. Each is done where it is
// faster on this device than launches of the norm's own, and right.
#pragma once

#include "nn/cuda/context.h"

namespace lpsgd::cuda {

/// A pass of a convolution by our own kernel.
struct OwnPass {
  const SmallConv& conv;
  const SmallConvTensors& tensors;
};

/// Whether forward and the gradient of the weights are to load `input`, which is that of `norm`.
bool loads_norm(Context& context, const ConvProblem& forward_problem, NormSource& norm,
                const NormInput& input, const OwnPass& forward, const OwnPass& weight_gradient);

/// Whether the gradient of the input is to take the sums of `norm`. `state` has partials and counters of the
/// convolution's own.
bool takes_sums(Context& context, const ConvProblem& problem, NormSource& norm, const NormInput& input,
                const OwnPass& input_gradient, const NormState& state);

}  // namespace lpsgd::cuda
