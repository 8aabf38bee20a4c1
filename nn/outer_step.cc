#include "nn/outer_step.h"

#include "core/error.h"
#include "nn/cuda/device_outer_step.h"
#include "nn/maths_device.h"

namespace lpsgd {

OuterStep::OuterStep(const OuterOptions& options, std::size_t arena, StreamView stream)
    : options_(options), stream_(stream) {
  if (stream.device().is_cuda()) return;
  synchronised_ = Buffer<float>(arena);
  if (options.momentum > 0) momentum_ = Buffer<float>(arena);
}

void OuterStep::start(std::span<const float> weights) {
  copy_values(synchronised(), weights, stream_);
}

void OuterStep::check_parts(std::size_t weights, std::size_t others, std::size_t first) {
  require(weights == others && first + weights <= synchronised().size(), "the arenas have one layout");
}

void OuterStep::difference(std::span<const float> weights, std::span<float> d, std::size_t first) {
  check_parts(weights.size(), d.size(), first);
  const float* const s = synchronised_.data() + first;
  for (std::size_t i = 0; i < d.size(); ++i) d[i] = s[i] - weights[i];
}

void OuterStep::apply(std::span<float> weights, std::span<const float> mean, std::size_t first, double mix) {
  check_parts(weights.size(), mean.size(), first);
  const maths::OuterRates rates{static_cast<float>(options_.momentum), static_cast<float>(options_.rate),
                                options_.nesterov, static_cast<float>(mix)};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    float none = 0, &u = momentum_.size() > 0 ? momentum_[first + i] : none;
    maths::outer(weights[i], synchronised_[first + i], u, mean[i], rates);
  }
}

std::unique_ptr<OuterStep> make_outer_step(const OuterOptions& options, std::size_t arena,
                                           StreamView stream) {
  if (stream.device().is_cuda()) return make_device_outer_step(options, arena, stream);
  return std::make_unique<OuterStep>(options, arena, stream);
}

}  // namespace lpsgd
