// Turns the status of a CUDA call into a DeviceError that names the call site. For CUDA sources only.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace lpsgd {

[[noreturn]] void throw_cuda_error(cudaError_t status, std::source_location where);

/// DeviceError "CUDA: <description> (<name>) at <file>:<line>" unless `status` is success. A launch is
/// checked with check(cudaGetLastError()).
inline void check(cudaError_t status, std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess) throw_cuda_error(status, where);
}

}  // namespace lpsgd
