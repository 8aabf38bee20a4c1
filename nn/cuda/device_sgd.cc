#include "nn/cuda/device_sgd.h"

#include <algorithm>

#include "core/cuda/check.h"
#include "core/error.h"
#include "nn/cuda/feed.h"
#include "nn/cuda/kernels.h"
#include "nn/optimizer.h"

namespace lpsgd {
namespace cuda {
namespace {

class Sgd final : public DeviceSgd {
 public:
  Sgd(const OptimizerOptions& options, std::size_t arena, const std::vector<std::uint8_t>& decayed,
      StreamView stream)
      : options_(options),
        stream_(stream),
        momentum_(stream.device(), arena),
        partials_(stream.device(), norm_parts),
        finished_(stream.device(), 1),
        scale_(stream.device(), 1),
        rates_(stream.device(), 1),
        rates_staging_(stream.device(), sizeof(maths::SgdRates)) {
    require(arena % sgd_group == 0 && decayed.size() == arena / sgd_group, "arenas are padded to 16 values");
    if (std::find(decayed.begin(), decayed.end(), 0) == decayed.end()) return;
    decayed_ = DeviceBuffer<std::uint8_t>(stream.device(), decayed.size());
    copy_values(decayed_.view(), decayed, stream);
    stream.synchronize();
  }

  void set_rates(maths::SgdRates rates) override {
    const ScopedDevice scope(stream_.device());
    auto* const host = reinterpret_cast<maths::SgdRates*>(rates_staging_.next());
    *host = rates;
    copy_bytes(rates_.data(), host, sizeof rates, stream_);
    rates_staging_.record_copies(stream_);
  }

  void step(std::span<float> parameters, std::span<const float> gradients) override {
    const ScopedDevice scope(stream_.device());
    const auto n = static_cast<std::int64_t>(momentum_.size());
    const bool clips = options_.clip_norm > 0;
    if (clips)
      check(launch_clip_scale(gradients.data(), n, options_.clip_norm, partials_.data(), finished_.data(),
                              scale_.data(), stream_.handle()));
    check(launch_sgd({.weights = parameters.data(),
                      .gradients = gradients.data(),
                      .momentum = momentum_.data(),
                      .decayed = decayed_.size() > 0 ? decayed_.data() : nullptr,
                      .scale = clips ? scale_.data() : nullptr,
                      .rates = rates_.data(),
                      .n = n,
                      .decay = static_cast<float>(options_.weight_decay),
                      .nesterov = options_.nesterov},
                     stream_.handle()));
  }

  std::span<float> momentum() override { return momentum_.view(); }

 private:
  OptimizerOptions options_;
  StreamView stream_;
  DeviceBuffer<float> momentum_;
  DeviceBuffer<std::uint8_t> decayed_;
  DeviceBuffer<double> partials_;
  DeviceBuffer<unsigned> finished_;
  DeviceBuffer<float> scale_;
  DeviceBuffer<maths::SgdRates> rates_;
  Staging rates_staging_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<DeviceSgd> make_device_sgd(const OptimizerOptions& options, std::size_t arena,
                                           const std::vector<std::uint8_t>& decayed, StreamView stream) {
  return std::make_unique<cuda::Sgd>(options, arena, decayed, stream);
}

}  // namespace lpsgd
