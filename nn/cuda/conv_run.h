// A convolution's plan, bound to the memory it runs on. Where the plan's tensors are channels first, they lie
// in the workspace, and a run transposes what the plan reads and what it writes: one pass over memory each.
// So do input and weights of a plan over blocks of pixels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/cuda/context.h"

namespace lpsgd::cuda {

/// A convolution's tensors in memory, NHWC and OHWI: input, weights, output and maybe the bias.
using ConvTensors = std::vector<std::pair<ConvTensor, const void*>>;

/// The tensor that a pass writes.
ConvTensor written_by(ConvPass pass);

inline constexpr const char* nchw_suffix = ", nchw";
inline constexpr const char* blocks_suffix = ", space to depth";
/// One of them, or an empty text.
const char* suffix_of(const ConvForm& form);
/// "engine 34, 2=1 5=0, fused, nchw".
std::string description_of(const ConvChoice& choice);

/// The bytes of workspace that a run takes: the plan's, and its tensors where they are transposed; or our own
/// kernel's.
std::int64_t workspace_of(const ConvProblem& problem, const ConvChoice& choice);

/// Queues our own kernel.
void run_own_conv(Context& context, const SmallConv& conv, ConvPass pass, const SmallConvTensors& tensors);

/// Of a plan of cuDNN's.
class ConvRun {
 public:
  /// Binds the context's workspace, which must not move as long as the run is used. The bias is bound if the
  /// choice includes it.
  ConvRun(Context& context, const ConvProblem& problem, const ConvChoice& choice, const ConvTensors& tensors);
  /// Queues it on the context's stream.
  void operator()() const;

 private:
  using Launch = std::function<cudaError_t(cudaStream_t)>;  // of a tensor's conversion

  Context* context_;
  std::shared_ptr<const ConvPlan> plan_;
  std::vector<Launch> before_;
  Launch after_;
  std::optional<Descriptor> pack_;
};

}  // namespace lpsgd::cuda
