// The CUDA backend of nn/ops.h. In builds without CUDA, nn/cuda/absent.cc implements these functions.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "nn/compute.h"
#include "nn/plan_search.h"

namespace lpsgd {

class Backend;

/// `search_seconds`: of all searches for algorithms (PlanBudget); none if `deterministic`. DeviceError if
/// there is no such device, or if its memory is too small.
std::unique_ptr<Backend> make_cuda_backend(Device device, Compute compute, bool deterministic,
                                           double search_seconds = default_search_seconds);

/// Versions of the libraries that the backend uses, as "9.19.0". Empty in a build without the backend. Where
/// there is no GPU, cuBLAS is not loaded, and its version is that of the build.
std::string cudnn_version();
std::string cublas_version();

}  // namespace lpsgd
