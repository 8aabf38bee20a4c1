// The CUDA backend of nn/ops.h. Only in builds with CUDA; nn/cuda/absent.cc stands in elsewhere.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "nn/compute.h"

namespace lpsgd {

class Backend;

/// DeviceError where there is no such device, or it has no room.
std::unique_ptr<Backend> make_cuda_backend(Device device, Compute compute, bool deterministic);

/// Versions of the libraries that the backend runs on, as "9.19.0"; empty in a build without it.
std::string cudnn_version();
std::string cublas_version();

}  // namespace lpsgd
