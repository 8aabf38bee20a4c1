// Stands in for the CUDA backend in a build without it.
#include "core/error.h"
#include "nn/cuda/backend.h"
#include "nn/ops.h"

namespace lpsgd {

std::unique_ptr<Backend> make_cuda_backend(Device, Compute, bool) {
  throw DeviceError("this build has no CUDA backend");
}
std::string cudnn_version() {
  return {};
}
std::string cublas_version() {
  return {};
}

}  // namespace lpsgd
