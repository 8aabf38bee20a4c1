// The update of the weights from the gradients. Every kind first scales the gradients g down to `clip_norm`,
// then adds noise.
//
// sgd, in the convention of torch.optim.SGD: g += wd * w; v = mu * v + g;
// w -= lr * (nesterov ? g + mu * v : v). With `momentum_unit_gain` g is first multiplied by 1 - mu, which is
// CNTK's convention.
//
// lars (You, Gitman, Ginsburg 2017): as sgd, with g = ratio * (g + wd * w) in place of g + wd * w, per
// tensor: ratio = trust * |w| / (|g| + wd * |w|). The norms are taken before decay, the ratio before
// momentum. It is 1 where a norm is 0, and for the kinds of tensors in `lars_exclude`.
//
// adam, adamw, as in torch.optim, at step t counted from 1: adam adds wd * w to g, adamw multiplies w by
// 1 - lr * wd; m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g * g;
// w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps).
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

enum class OptimizerKind : std::uint8_t { sgd, lars, adam, adamw };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  double momentum = 0.9;
  bool nesterov = false;
  bool momentum_unit_gain = false;
  double weight_decay = 0;
  std::vector<std::string> no_decay = {};  // kinds of tensors without weight decay: norm, bias, ...
  double clip_norm = 0;  // the largest 2-norm over all gradients, which are scaled down to it; 0: no limit
  double noise = 0;      // standard deviation in the first step
  double noise_decay = 0.55;
  double trust = 0.001;
  std::vector<std::string> lars_exclude = {"norm", "bias"};
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  bool is_adam() const { return kind == OptimizerKind::adam || kind == OptimizerKind::adamw; }
};
void fields(config::Visitor& visitor, OptimizerOptions& options);  // section `optimizer`

/// Part of a training state: values laid out like the parameters.
struct NamedArena {
  std::string name;         // "momentum"
  std::span<float> values;  // on the network's device or on the host
  bool own = false;         // each rank's differs
  /// What it is in a run that goes on from a checkpoint which does not have it, or has it of other ranks.
  enum class Otherwise : std::uint8_t {
    mean,     // of the old ranks' values; an error if there are none
    average,  // the average weights
    zeros
  };
  Otherwise otherwise = Otherwise::mean;
};

class DeviceSgd;

class Optimizer {
 public:
  /// `arena` is the size of the parameters' arena, which lies on the stream's device. Steps are queued on the
  /// stream. `seed` is the noise's.
  Optimizer(const OptimizerOptions& options, std::vector<TensorInfo> tensors, std::size_t arena,
            StreamView stream = {}, std::uint32_t seed = 1);
  ~Optimizer();
  /// Sets the learning rate of step `step` of the run, counted from 0. To be called before each step. (Plain
  /// sgd needs it only where the rate changes.) A GPU reads the rates from its memory, so that a step can be
  /// captured (core/capture.h).
  void set_rate(double lr, std::int64_t step = 0);
  /// From the next set_rate() on the noise is that of this rank. Ranks that average their gradients in every
  /// step leave it at 0, so that all add the same.
  void set_noise_rank(int rank) { noise_rank_ = static_cast<std::uint32_t>(rank); }
  /// Replaces the options' momentum from the next set_rate() on.
  void set_momentum(double mu) { mu_ = mu; }
  /// Updates `parameters` and the momentum. As in PyTorch, v = g in the first step. Noise changes the
  /// gradients.
  void step(std::span<float> parameters, std::span<float> gradients);
  std::span<float> momentum();       // laid out like the parameters; of Adam the first moment
  std::span<float> second_moment();  // likewise; empty unless the kind is Adam's
  /// The optimizer's state, for checkpoints.
  std::vector<NamedArena> arenas();

 private:
  OptimizerOptions options_;
  std::vector<TensorInfo> tensors_;
  float decay_of(bool decayed) const { return decayed ? static_cast<float>(options_.weight_decay) : 0.0f; }
  void add_noise(std::span<float> gradients, float scale) const;

  /// Consecutive tensors that are all decayed or all not; with LARS single tensors. Each run is one pass.
  struct Run {
    std::int64_t begin = 0, end = 0;
    bool decayed = true, adapted = false;
  };
  std::vector<Run> runs_;
  std::uint32_t seed_ = 1, noise_rank_ = 0;
  double mu_ = 0;
  std::optional<maths::StepRates> rates_;
  Buffer<float> momentum_, second_;    // on the CPU
  std::unique_ptr<DeviceSgd> device_;  // on a GPU
};

}  // namespace lpsgd
