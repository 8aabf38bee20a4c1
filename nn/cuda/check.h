// Turns the status of a cuDNN or cuBLASLt call into a DeviceError that names the call site.
#pragma once

#include <cudnn.h>

#include "core/cuda/check.h"
#include "nn/cuda/cublas_lt.h"

namespace lpsgd {

[[noreturn]] void throw_cudnn_error(cudnnStatus_t status, std::source_location where);
[[noreturn]] void throw_cublas_error(cublasStatus_t status, std::source_location where);

inline void check(cudnnStatus_t status, std::source_location where = std::source_location::current()) {
  if (status != CUDNN_STATUS_SUCCESS) throw_cudnn_error(status, where);
}
inline void check(cublasStatus_t status, std::source_location where = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) throw_cublas_error(status, where);
}

}  // namespace lpsgd
