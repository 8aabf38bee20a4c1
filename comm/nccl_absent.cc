// Replaces nccl_transport.cc in a build without NCCL.
#include "comm/nccl_transport.h"
#include "core/error.h"

namespace lpsgd {

std::string nccl_missing() {
#if LPSGD_HAVE_CUDA
  return "this build has no NCCL";
#else
  return "this build has no CUDA backend";
#endif
}

std::string nccl_version() {
  return "";
}

std::unique_ptr<Transport> make_nccl_transport(Transport&, Device) {
  throw DeviceError("transport nccl: " + nccl_missing());
}

}  // namespace lpsgd
