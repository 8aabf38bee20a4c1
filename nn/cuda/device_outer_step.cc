#include "nn/cuda/device_outer_step.h"

#include "core/cuda/check.h"
#include "core/error.h"
#include "nn/cuda/kernels.h"

namespace lpsgd {
namespace cuda {
namespace {

class DeviceOuterStep final : public OuterStep {
 public:
  DeviceOuterStep(const OuterOptions& options, std::size_t arena, StreamView stream)
      : OuterStep(options, arena, stream), synchronised_(stream.device(), arena) {
    if (options.momentum > 0) momentum_ = DeviceBuffer<float>(stream.device(), arena);
  }

  void difference(std::span<const float> weights, std::span<float> d, std::size_t first) override {
    check_parts(weights.size(), d.size(), first);
    const ScopedDevice scope(stream_.device());
    check(
        launch_difference(synchronised_.data() + first, weights.data(), d.data(), size(d), stream_.handle()));
  }
  void apply(std::span<float> weights, std::span<const float> mean, std::size_t first, double mix) override {
    check_parts(weights.size(), mean.size(), first);
    const ScopedDevice scope(stream_.device());
    const maths::OuterRates rates{static_cast<float>(options_.momentum), static_cast<float>(options_.rate),
                                  options_.nesterov, static_cast<float>(mix)};
    check(launch_outer(
        {weights.data(), synchronised_.data() + first,
         momentum_.size() > 0 ? momentum_.data() + first : nullptr, mean.data(), size(mean), rates},
        stream_.handle()));
  }
  std::span<float> synchronised() override { return synchronised_.view(); }
  std::span<float> momentum() override { return momentum_.view(); }

 private:
  static std::int64_t size(std::span<const float> part) { return static_cast<std::int64_t>(part.size()); }

  DeviceBuffer<float> synchronised_, momentum_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<OuterStep> make_device_outer_step(const OuterOptions& options, std::size_t arena,
                                                  StreamView stream) {
  return std::make_unique<cuda::DeviceOuterStep>(options, arena, stream);
}

}  // namespace lpsgd
