// sign (quant/codecs/sign.cc) on the device.
#include "quant/cuda/scaled_device.h"

namespace lpsgd::cuda {
namespace {

struct SignRule {
  static constexpr int bits = 1;
  static constexpr bool dithered = false;
  float scale = 1;
  bool majority;
  __device__ SignRule(const Launch& launch, const Job&, const std::byte*) : majority(launch.sign.majority) {}
  __device__ static constexpr int table_bytes() { return 0; }
  __device__ static Statistic statistic(const Launch& launch) {
    return launch.sign.majority ? Statistic::largest : Statistic::mean;
  }
  __device__ static int scale_count(const Launch& launch) { return launch.sign.majority ? 0 : 1; }
  __device__ void start(Scales s) { scale = majority ? 1.0f : s.a; }
  __device__ std::int32_t code(float v, std::int32_t) const { return sign_code<ScalarLanes>(v); }
  __device__ float value(std::int32_t code) const { return sign_value<ScalarLanes>(code, scale); }
};

}  // namespace

cudaError_t encode_sign(const Launch& launch, cudaStream_t stream) {
  return encode_scaled<SignRule>(launch, stream);
}
cudaError_t decode_sign(const Launch& launch, bool adds, cudaStream_t stream) {
  return decode_scaled<SignRule>(launch, adds, stream);
}

}  // namespace lpsgd::cuda
