// The number of values that topk keeps.
#pragma once

#include "quant/codec_math_device.h"

namespace lpsgd {

/// Of a bucket of m >= 1 values: max(1, floor(density*m + 0.5)).
LPSGD_HD std::int64_t topk_kept(double density, std::int64_t m) {
  const auto kept = static_cast<std::int64_t>(density * static_cast<double>(m) + 0.5);
  return kept < 1 ? 1 : kept < m ? kept : m;
}

}  // namespace lpsgd
