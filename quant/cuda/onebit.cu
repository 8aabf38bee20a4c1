// onebit (quant/codecs/onebit.cc) on the device. Memory moved: scaled_device.h, with one bit a code.
#include "quant/cuda/scaled_device.h"

namespace lpsgd::cuda {
namespace {

template <class L>
struct Onebit : ScaledRule<NoOptions> {
  static constexpr int bits = 1;
  static constexpr Scale scales[1] = {Scale::sides};
  float positive = 0, negative = 0;
  __device__ explicit Onebit(const NoOptions&) {}
  __device__ void start(float of_positive, float of_negative) {
    positive = of_positive;
    negative = of_negative;
  }
  __device__ std::int32_t code(float v, std::int32_t) const { return v >= 0.0f ? 1 : 0; }
  __device__ float value(std::int32_t code) const { return (code & 1) != 0 ? positive : negative; }
};

}  // namespace

CodecKernels onebit_kernels() {
  return scaled_kernels<Onebit>();
}

}  // namespace lpsgd::cuda
