// What a convolution of random operands should give: some of its results, computed on the host in double. A
// slow reference, independent of the libraries.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/cuda/cudnn_graph.h"

namespace lpsgd::cuda {

/// Results of a pass of a convolution whose operands are random operands (nn/cuda/random_operand.h), the
/// tensors' numbers being their identifiers.
struct ConvSamples {
  std::vector<std::int64_t> at;       // indices in the tensor that the pass writes, NHWC or OHWI
  std::vector<double> values;         // without bias
  std::vector<std::int64_t> filters;  // of forward: the filter of each, for its bias
};

/// 256 results, spread over samples, pixels and channels, with corners and borders among them. Fewer for a
/// weight gradient of very few weights.
ConvSamples sample_convolution(const ConvProblem& problem);

/// Whether a sample of the batch has a gradient in the reference. In a weight gradient only so many have one
/// that each sum has about 2^18 terms, in bfloat16 2^16: the rest of the output's gradient must be 0.
bool has_gradient(const ConvProblem& problem, std::int64_t sample);

}  // namespace lpsgd::cuda
