// 1-bit SGD: maths of the codec `onebit`.
#pragma once

#include "quant/codec_math_device.h"

namespace lpsgd {

/// The mean of the side of zero that the lowest bit of the code names.
template <class L>
LPSGD_HD typename L::F onebit_value(typename L::I code, typename L::F positive, typename L::F negative) {
  return (code & 1) != 0 ? positive : negative;
}

}  // namespace lpsgd
