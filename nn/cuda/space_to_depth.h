// A convolution of an image's few channels with a stride, as one of stride 1 over blocks of stride.h x
// stride.w pixels (space to depth): 11 x 11 with stride 4 over 3 channels becomes 3 x 3 over 48. cuDNN's
// engines for tensor cores want channels in multiples of 8. The sums are the same, with zeros where a window
// in blocks is larger than the window.
#pragma once

#include <cstdint>

#include "nn/cuda/cudnn_graph.h"
#include "nn/cuda/kernels.h"

namespace lpsgd::cuda {

/// Whether it is worth a try: at most four channels, in one group, and a stride that the window is not below.
/// Not for the gradient of the input, which a first layer has not.
bool has_blocks(const ConvProblem& problem);
/// The convolution over blocks. Its output is that of the problem.
ConvProblem in_blocks(const ConvProblem& problem);
/// How tensors of the problem become those of in_blocks().
BlockShape blocks_of(const ConvProblem& problem);

}  // namespace lpsgd::cuda
