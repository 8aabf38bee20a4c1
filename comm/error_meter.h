// What coding loses, per tensor, measured on request: it costs a pass over the gradient and, without error
// feedback, a decoding.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "core/buffer.h"

namespace lpsgd {

class ErrorMeter {
 public:
  explicit ErrorMeter(std::size_t tensors) : sums_(tensors) {}

  /// After a segment of the rank's own gradient was encoded into `record` and before its mean is decoded.
  /// `gradient` and `residual` are the segment's; `residual` is nullptr without error feedback.
  void see(const Segment& segment, const ExchangeTensor& tensor, const float* gradient, const float* residual,
           const std::byte* record);
  /// Adds the sums since the last call to `sums`, one entry a tensor.
  void take(std::span<CodingError> sums);

 private:
  std::vector<CodingError> sums_;
  Buffer<float> decoded_;
};

}  // namespace lpsgd
