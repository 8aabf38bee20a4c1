#include "comm/coder.h"

#include <string>

#include "core/error.h"
#if LPSGD_HAVE_CUDA
#include "comm/cuda/device_coder.h"
#endif

namespace lpsgd {

std::unique_ptr<Coder> make_coder(ExchangeShared& shared, const ExchangeOptions& options,
                                  [[maybe_unused]] std::span<const std::size_t> order,
                                  [[maybe_unused]] std::span<const Unit> plan) {
  const Transport& transport = shared.transport;
  if (!options.device.is_cuda()) {
    if (transport.ordered())
      throw ConfigError(std::string("exchange.transport: ") + transport.name() +
                        " moves device memory alone, but gradients are on the CPU; use mpi");
    return make_cpu_coder(shared);
  }
  if (options.device_pointers == true && !transport.takes_device_memory())
    throw ConfigError(std::string("exchange.device_pointers: the transport ") + transport.name() +
                      " does not take device memory; allowed: auto, false");
  if (options.device_pointers == false && transport.ordered())
    throw ConfigError(std::string("exchange.device_pointers: the transport ") + transport.name() +
                      " takes device memory alone; allowed: auto, true");
#if LPSGD_HAVE_CUDA
  return std::make_unique<DeviceCoder>(shared, options, order, plan);
#else
  throw DeviceError("this build has no CUDA backend");
#endif
}

}  // namespace lpsgd
