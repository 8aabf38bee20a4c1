#include "nn/cuda/device_sgd.h"

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
  Sgd(const OptimizerOptions& options, std::size_t arena, const std::vector<OptimizedTensor>& tensors,
      StreamView stream, std::uint32_t seed)
      : options_(options),
        stream_(stream),
        seed_(seed),
        momentum_(stream.device(), arena),
        partials_(stream.device(), norm_parts),
        finished_(stream.device(), 1),
        scale_(stream.device(), 1),
        rates_(stream.device(), 1),
        rates_staging_(stream.device(), sizeof(maths::StepRates)) {
    require(arena % sgd_group == 0, "arenas are padded to 16 values");
    if (options_.is_adam()) second_ = DeviceBuffer<float>(stream.device(), arena);
    std::vector<std::uint8_t> decayed(arena / sgd_group, 1);
    std::vector<std::int32_t> tensor_of(arena / sgd_group, 0);
    std::vector<TensorRange> ranges;
    bool all_decayed = true;
    for (const OptimizedTensor& t : tensors) {
      for (std::int64_t i = t.begin / sgd_group; i * sgd_group < t.begin + t.elements; ++i) {
        decayed[static_cast<std::size_t>(i)] = t.decayed;
        tensor_of[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(ranges.size());
      }
      all_decayed &= t.decayed;
      const double decay = t.decayed ? options_.weight_decay : 0;
      ranges.push_back({t.begin, t.elements, static_cast<float>(decay), t.adapted});
    }
    if (!all_decayed) decayed_ = on_device<std::uint8_t>(decayed);
    if (options_.noise > 0 || is_lars()) tensors_ = on_device<TensorRange>(ranges);
    if (is_lars()) {
      tensor_of_ = on_device<std::int32_t>(tensor_of);
      ratios_ = DeviceBuffer<float>(stream.device(), ranges.size());
      lars_partials_ = DeviceBuffer<double>(stream.device(), 2 * lars_parts * ranges.size());
    }
    stream.synchronize();
  }

  void set_rates(const maths::StepRates& rates) override {
    const ScopedDevice scope(stream_.device());
    auto* const host = reinterpret_cast<maths::StepRates*>(rates_staging_.next());
    *host = rates;
    copy_bytes(rates_.data(), host, sizeof rates, stream_);
    rates_staging_.record_copies(stream_);
  }

  void step(std::span<float> parameters, std::span<float> gradients) override {
    const ScopedDevice scope(stream_.device());
    const auto n = static_cast<std::int64_t>(momentum_.size());
    const int count = static_cast<int>(tensors_.size());
    const float* scale = options_.clip_norm > 0 ? scale_.data() : nullptr;
    if (scale)
      check(launch_clip_scale(gradients.data(), n, options_.clip_norm, partials_.data(), finished_.data(),
                              scale_.data(), stream_.handle()));
    if (options_.noise > 0) {
      check(launch_noise(tensors_.data(), count, gradients.data(), scale, rates_.data(), seed_,
                         stream_.handle()));
      scale = nullptr;
    }
    if (is_lars())
      check(launch_lars(tensors_.data(), count, parameters.data(), gradients.data(), scale,
                        static_cast<float>(options_.trust), lars_partials_.data(), ratios_.data(),
                        stream_.handle()));
    const SgdStep step{.weights = parameters.data(),
                       .gradients = gradients.data(),
                       .momentum = momentum_.data(),
                       .decayed = decayed_.size() > 0 ? decayed_.data() : nullptr,
                       .scale = scale,
                       .rates = rates_.data(),
                       .n = n,
                       .decay = static_cast<float>(options_.weight_decay),
                       .nesterov = options_.nesterov,
                       .ratios = is_lars() ? ratios_.data() : nullptr,
                       .tensor_of = is_lars() ? tensor_of_.data() : nullptr,
                       .second = options_.is_adam() ? second_.data() : nullptr,
                       .decoupled = options_.kind == OptimizerKind::adamw};
    check(options_.is_adam() ? launch_adam(step, stream_.handle()) : launch_sgd(step, stream_.handle()));
  }

  std::span<float> momentum() override { return momentum_.view(); }
  std::span<float> second_moment() override { return second_.view(); }

 private:
  bool is_lars() const { return options_.kind == OptimizerKind::lars; }
  template <class T>
  DeviceBuffer<T> on_device(const std::vector<T>& values) {
    DeviceBuffer<T> out(stream_.device(), values.size());
    copy_bytes(out.data(), values.data(), values.size() * sizeof(T), stream_);
    stream_.synchronize();
    return out;
  }

  OptimizerOptions options_;
  StreamView stream_;
  std::uint32_t seed_;
  DeviceBuffer<float> momentum_, second_;
  DeviceBuffer<std::uint8_t> decayed_;
  DeviceBuffer<TensorRange> tensors_;  // for LARS and noise
  DeviceBuffer<std::int32_t> tensor_of_;
  DeviceBuffer<float> ratios_;
  DeviceBuffer<double> lars_partials_;
  DeviceBuffer<double> partials_;
  DeviceBuffer<unsigned> finished_;
  DeviceBuffer<float> scale_;
  DeviceBuffer<maths::StepRates> rates_;
  Staging rates_staging_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<DeviceSgd> make_device_sgd(const OptimizerOptions& options, std::size_t arena,
                                           const std::vector<OptimizedTensor>& tensors, StreamView stream,
                                           std::uint32_t seed) {
  return std::make_unique<cuda::Sgd>(options, arena, tensors, stream, seed);
}

}  // namespace lpsgd
