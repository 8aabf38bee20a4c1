// dynamic8 (quant/codecs/dynamic8.cc) on the device.
#include "quant/cuda/scaled_device.h"

namespace lpsgd::cuda {
namespace {

struct Dynamic8Rule {
  static constexpr int bits = 8;
  static constexpr bool dithered = false;
  const Dynamic8Table* table;
  float scale = 0, divisor = 1;
  __device__ Dynamic8Rule(const Launch& launch, const Job&, const std::byte*) : table(launch.dynamic8) {}
  __device__ static constexpr int table_bytes() { return 0; }
  __device__ static Statistic statistic(const Launch&) { return Statistic::largest; }
  __device__ static int scale_count(const Launch&) { return 1; }
  __device__ void start(Scales s) {
    scale = s.a;
    divisor = s.a > 0 ? s.a : 1.0f;
  }
  __device__ std::int32_t code(float v, std::int32_t) const {
    return dynamic8_code<ScalarLanes>(*table, v, divisor);
  }
  __device__ float value(std::int32_t code) const { return dynamic8_value<ScalarLanes>(*table, code, scale); }
};

}  // namespace

cudaError_t encode_dynamic8(const Launch& launch, cudaStream_t stream) {
  return encode_scaled<Dynamic8Rule>(launch, stream);
}
cudaError_t decode_dynamic8(const Launch& launch, bool adds, cudaStream_t stream) {
  return decode_scaled<Dynamic8Rule>(launch, adds, stream);
}

}  // namespace lpsgd::cuda
