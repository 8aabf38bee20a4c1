// Implements the functions of the CUDA backend in a build without it.
#include "core/error.h"
#include "nn/cuda/backend.h"
#include "nn/cuda/device_outer_step.h"
#include "nn/cuda/device_sgd.h"
#include "nn/ops.h"

namespace lpsgd {

std::unique_ptr<Backend> make_cuda_backend(Device device, Compute, bool, double) {
  const ScopedDevice refused(device);
  throw DeviceError("this build has no CUDA backend");
}
std::unique_ptr<DeviceSgd> make_device_sgd(const OptimizerOptions&, std::size_t,
                                           const std::vector<OptimizedTensor>&, StreamView, std::uint32_t) {
  throw DeviceError("this build has no CUDA backend");
}
std::unique_ptr<OuterStep> make_device_outer_step(const OuterOptions&, std::size_t, StreamView) {
  throw DeviceError("this build has no CUDA backend");
}
std::string cudnn_version() {
  return {};
}
std::string cublas_version() {
  return {};
}

}  // namespace lpsgd
