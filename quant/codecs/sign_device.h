// The signs of values: maths of the codec `sign`.
#pragma once

#include "quant/codec_math_device.h"

namespace lpsgd {

struct SignOptions {
  bool majority = false;
};

/// 1 where v >= 0 (also for -0), else 0.
template <class L>
LPSGD_HD typename L::I sign_code(typename L::F v) {
  const typename L::I zero = typename L::I{};
  return v >= 0.0f ? zero + 1 : zero;
}

/// scale or -scale, by the lowest bit of the code.
template <class L>
LPSGD_HD typename L::F sign_value(typename L::I code, float scale) {
  return L::value((((code & 1) ^ 1) << 31) ^ ScalarLanes::bits(scale));
}

}  // namespace lpsgd
