#include "comm/error_meter.h"

#include <utility>

namespace lpsgd {

namespace {

double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

}  // namespace

void ErrorMeter::see(const Segment& segment, const ExchangeTensor& tensor, const float* gradient,
                     const float* residual, const std::byte* record) {
  CodingError& sum = sums_[segment.tensor];
  const auto n = static_cast<std::size_t>(segment.n);
  double own = 0, lost = 0;
  if (residual != nullptr) {  // it is what was lost
    for (std::size_t i = 0; i < n; ++i) {
      own += square(gradient[i]);
      lost += square(residual[i]);
    }
    sum.residual += lost;
  } else if (!tensor.untouched) {
    if (decoded_.size() < n) decoded_ = Buffer<float>(n);
    tensor.codec->decode(record, segment.n, tensor.bucket, false, decoded_.data());
    for (std::size_t i = 0; i < n; ++i) {
      own += square(gradient[i]);
      lost += square(gradient[i] - decoded_[i]);
    }
  }
  sum.gradient += own;
  sum.error += lost;
}

void ErrorMeter::take(std::span<CodingError> sums) {
  for (std::size_t t = 0; t < sums_.size(); ++t) sums[t].add(std::exchange(sums_[t], {}));
}

}  // namespace lpsgd
