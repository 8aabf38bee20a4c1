// onebit (quant/codecs/onebit.cc) on the device.
#include "quant/cuda/scaled_device.h"

namespace lpsgd::cuda {
namespace {

struct OnebitRule {
  static constexpr int bits = 1;
  static constexpr bool dithered = false;
  float positive = 0, negative = 0;
  __device__ OnebitRule(const Launch&, const Job&, const std::byte*) {}
  __device__ static constexpr int table_bytes() { return 0; }
  __device__ static Statistic statistic(const Launch&) { return Statistic::sides; }
  __device__ static int scale_count(const Launch&) { return 2; }
  __device__ void start(Scales s) { positive = s.a, negative = s.b; }
  __device__ std::int32_t code(float v, std::int32_t) const { return v >= 0.0f ? 1 : 0; }
  __device__ float value(std::int32_t code) const {
    return onebit_value<ScalarLanes>(code, positive, negative);
  }
};

}  // namespace

cudaError_t encode_onebit(const Launch& launch, cudaStream_t stream) {
  return encode_scaled<OnebitRule>(launch, stream);
}
cudaError_t decode_onebit(const Launch& launch, bool adds, cudaStream_t stream) {
  return decode_scaled<OnebitRule>(launch, adds, stream);
}

}  // namespace lpsgd::cuda
