// The draws that host and device are compared on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/philox.h"

namespace lpsgd {

/// Counter (i, 3i, i^2, ~i): every word differs between threads.
LPSGD_HD Philox4x32 draw(std::uint32_t i) {
  return philox4x32(i, 3 * i, i * i, ~i, 0xdecafbad, static_cast<std::uint32_t>(RandomUse::codec));
}

/// Writes the four words of draw(0) .. draw(blocks - 1) to device memory, in stream order.
cudaError_t launch_draws(std::uint32_t* out, std::uint32_t blocks, cudaStream_t stream);

}  // namespace lpsgd
