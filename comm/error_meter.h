// What coding loses, per tensor, measured on request: it costs a pass over the gradient and, without error
// feedback, a decoding.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "core/buffer.h"
#include "quant/codec.h"

namespace lpsgd {

class ErrorMeter {
 public:
  explicit ErrorMeter(std::size_t tensors) : sums_(tensors) {}

  /// After the job was encoded and before its mean is decoded; its pointers are those of encode.
  void add(const Codec& codec, CodingJob job);
  /// Adds the sums since the last call to `sums`, one entry a tensor.
  void take(std::span<CodingError> sums);

 private:
  std::vector<CodingError> sums_;
  Buffer<float> decoded_;
};

}  // namespace lpsgd
