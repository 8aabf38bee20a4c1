// SGD with momentum, Nesterov momentum, weight decay and gradient clipping, in the convention of
// torch.optim.SGD: g += wd * w; v = mu * v + g; w -= lr * (nesterov ? g + mu * v : v). With
// `momentum_unit_gain` g is first multiplied by 1 - mu, which is CNTK's convention. It is one pass over the
// arena.
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
#include "nn/maths_device.h"

namespace lpsgd {

struct OptimizerOptions {
  double momentum = 0.9;
  bool nesterov = false;
  bool momentum_unit_gain = false;
  double weight_decay = 0;
  std::vector<std::string> no_decay = {};  // kinds of tensors without weight decay: norm, bias, ...
  double clip_norm = 0;  // the largest 2-norm over all gradients, which are scaled down to it; 0: no limit
};
void fields(config::Visitor& visitor, OptimizerOptions& options);  // section `optimizer`

class DeviceSgd;

class Optimizer {
 public:
  /// `arena` is the size of the parameters' arena, which lies on the stream's device. Steps are queued on the
  /// stream.
  Optimizer(const OptimizerOptions& options, std::vector<TensorInfo> tensors, std::size_t arena,
            StreamView stream = {});
  ~Optimizer();
  /// Sets the learning rate of the following steps. To be called before the first step. A GPU reads the rate
  /// and mu from its memory, so that a step can be captured (core/capture.h).
  void set_rate(double lr);
  /// Replaces the options' momentum from the next set_rate() on.
  void set_momentum(double mu) { mu_ = mu; }
  /// Updates `parameters` and the momentum. As in PyTorch, v = g in the first step.
  void step(std::span<float> parameters, std::span<const float> gradients);
  std::span<float> momentum();  // laid out like the parameters

 private:
  OptimizerOptions options_;
  std::vector<TensorInfo> tensors_;
  /// Consecutive tensors that are all decayed or all not. Each run is one pass.
  struct Run {
    std::int64_t begin = 0, end = 0;
    bool decayed = true;
  };
  std::vector<Run> runs_;
  double mu_ = 0;
  std::optional<maths::SgdRates> rates_;
  Buffer<float> momentum_;             // on the CPU
  std::unique_ptr<DeviceSgd> device_;  // on a GPU
};

}  // namespace lpsgd
