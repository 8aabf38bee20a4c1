// A transposition, for nvcc and the host's compiler alike.
#pragma once

#include <cstdint>

namespace lpsgd {

/// `outer` matrices of rows x columns, transposed. All memory is the device's.
struct Transposition {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t outer = 0, rows = 0, columns = 0;
  std::int64_t tiles_before = 0;  // set by cuda_transpose(): tiles of the jobs before it in one launch
};

}  // namespace lpsgd
