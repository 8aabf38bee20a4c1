// The update of synchronised weights from the mean of what the ranks' local steps changed. With s the weights
// that the ranks last agreed on, and w a rank's own:
//   d = s - w;  u = mu * u + mean(d);  s = w = s - rate * (nesterov ? mean(d) + mu * u : u)
// With mu = 0 and rate = 1 that is w = s - mean(d): the ranks' average. Otherwise it is block momentum (Chen
// and Huo 2016), with `nesterov` DiLoCo's outer step (Douillard et al. 2023). If a rank has gone on before
// the mean arrives, it may keep a share of where it is: w = s + mix * (w - s) (Streaming DiLoCo, Douillard et
// al. 2025).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/buffer.h"
#include "core/device.h"

namespace lpsgd {

struct OuterOptions {
  double momentum = 0, rate = 1;
  bool nesterov = false;
};

class OuterStep {
 public:
  /// `arena` is the size of the parameters' arena, which lies on the stream's device. Everything is queued on
  /// the stream.
  OuterStep(const OuterOptions& options, std::size_t arena, StreamView stream);
  virtual ~OuterStep() = default;

  /// The ranks agree on these weights.
  void start(std::span<const float> weights);
  // Of the whole arenas, or of a part of each that begins at value `first`.
  virtual void difference(std::span<const float> weights, std::span<float> d, std::size_t first = 0);
  /// Sets the weights, from the mean of d over the ranks, to s + mix * (w - s).
  virtual void apply(std::span<float> weights, std::span<const float> mean, std::size_t first = 0,
                     double mix = 0);

  virtual std::span<float> synchronised() { return synchronised_.view(); }
  virtual std::span<float> momentum() { return momentum_.view(); }  // u; empty if mu is 0

 protected:
  void check_parts(std::size_t weights, std::size_t others, std::size_t first);

  const OuterOptions options_;
  const StreamView stream_;

 private:
  Buffer<float> synchronised_, momentum_;  // on the CPU
};

/// On the stream's device.
std::unique_ptr<OuterStep> make_outer_step(const OuterOptions& options, std::size_t arena, StreamView stream);

}  // namespace lpsgd
