// A fault that is put into a run on purpose.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"

namespace lpsgd {

/// One bit of one weight of one rank, flipped after a step: what a faulty memory or processor may do
/// unnoticed.
struct BitFlip {
  std::int64_t step = 0;  // after so many steps since the start; 0: never
  std::int64_t rank = 0;
  std::string tensor;        // empty: the first
  std::int64_t element = 0;  // of the tensor
  std::int64_t bit = 0;      // 0: the mantissa's lowest, 31: the sign

  bool planned() const { return step > 0; }
};

void fields(config::Visitor& visitor, BitFlip& flip);

}  // namespace lpsgd
