// cuda_discovery_test TEXT: discovery must find no device and say exactly TEXT. Run with a made-up driver.
#include <cstdio>

#include "core/device.h"

int main(int argc, char** argv) {
  const lpsgd::CudaDevices& found = lpsgd::cuda_devices();
  if (argc == 2 && found.count == 0 && found.reason == argv[1]) return 0;
  std::printf("count %d, reason: %s\n", found.count, found.reason.c_str());
  return 1;
}
