#include "nn/compute.h"

#include <fmt/core.h>

#include "nn/ops.h"

namespace lpsgd {

std::optional<std::string> unsupported(Compute compute, Device device) {
  if (!device.is_cuda()) return cpu_unsupported(compute);
  if (compute == Compute::fp32) return std::nullopt;
  const CudaDeviceInfo info = cuda_device_info(device.index);
  if (info.major >= 8) return std::nullopt;
  return fmt::format("{} needs a GPU of compute capability 8.0, {} ({}) has {}.{}; allowed: fp32",
                     compute == Compute::tf32 ? "tf32" : "bf16", device.text(), info.name, info.major,
                     info.minor);
}

}  // namespace lpsgd
