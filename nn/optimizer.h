// SGD with momentum, Nesterov's variant, weight decay and clipping, in PyTorch's convention
// (torch.optim.SGD): g += wd*w; v = mu*v + g; w -= lr*(nesterov ? g + mu*v : v). One pass over the arena.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/config.h"
#include "core/device.h"
#include "core/tensor_info.h"

namespace lpsgd {

struct OptimizerOptions {
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  std::vector<std::string> no_decay = {};  // kinds that are not decayed: norm, bias, ...
  double clip_norm = 0;  // gradients are scaled so that their 2-norm over all tensors is at most this; 0: off
};
void fields(config::Visitor& visitor, OptimizerOptions& options);  // section `optimizer`

class DeviceSgd;

class Optimizer {
 public:
  /// Arenas lie in the memory of the stream's device, and steps are queued on it.
  Optimizer(const OptimizerOptions& options, std::vector<TensorInfo> tensors, std::size_t arena,
            StreamView stream = {});
  ~Optimizer();
  /// The learning rate of the steps that come; a device reads it from its memory, so that a step can be
  /// captured (core/capture.h). Before the first step.
  void set_rate(double lr);
  /// One step: reads `gradients`, updates `parameters` and the momentum. The first step's v is g, as
  /// PyTorch's.
  void step(std::span<float> parameters, std::span<const float> gradients);
  std::span<float> momentum();  // arena, laid out like parameters

 private:
  OptimizerOptions options_;
  std::vector<TensorInfo> tensors_;
  /// Tensors that follow each other and are decayed, or not: one pass.
  struct Run {
    std::int64_t begin = 0, end = 0;
    bool decayed = true;
  };
  std::vector<Run> runs_;
  std::optional<float> lr_;
  Buffer<float> momentum_;             // of the CPU
  std::unique_ptr<DeviceSgd> device_;  // of a device
};

}  // namespace lpsgd
