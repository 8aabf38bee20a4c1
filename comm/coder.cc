#include "comm/coder.h"

#include <fmt/core.h>

#include "core/error.h"
#if LPSGD_HAVE_CUDA
#include "comm/cuda/device_coder.h"
#endif

namespace lpsgd {

std::unique_ptr<Coder> make_coder(ExchangeShared& shared, const ExchangeOptions& options) {
  const Transport& transport = shared.transport;
  if (!options.device.is_cuda()) {
    if (!transport.ordered()) return make_cpu_coder(shared);
    throw ConfigError(
        fmt::format("exchange.transport: {} moves device memory alone, but gradients are on the CPU; use mpi",
                    transport.name()));
  }
  const auto refuse = [&](const char* reason) {
    throw ConfigError(fmt::format("exchange.device_pointers: the transport {} {}", transport.name(), reason));
  };
  if (options.device_pointers == true && !transport.takes_device_memory())
    refuse("does not take device memory; allowed: auto, false");
  if (options.device_pointers == false && transport.ordered())
    refuse("takes device memory alone; allowed: auto, true");
#if LPSGD_HAVE_CUDA
  return std::make_unique<DeviceCoder>(shared, options);
#else
  throw DeviceError("this build has no CUDA backend");
#endif
}

}  // namespace lpsgd
