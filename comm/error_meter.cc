#include "comm/error_meter.h"

#include <utility>

namespace lpsgd {

namespace {

double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

}  // namespace

void ErrorMeter::add(const Codec& codec, CodingJob job) {
  const auto n = static_cast<std::size_t>(job.n);
  if (job.residual == nullptr) {
    if (decoded_.size() < n) decoded_ = Buffer<float>(n);
    job.out = decoded_.data();
    codec.decode(job);
  }
  double own = 0, lost = 0;
  for (std::size_t i = 0; i < n; ++i) {
    own += square(job.values[i]);
    lost += square(job.residual ? job.residual[i] : job.values[i] - decoded_[i]);
  }
  sums_[job.tensor].add({own, lost, job.residual ? lost : 0.0});
}

void ErrorMeter::take(std::span<CodingError> sums) {
  for (std::size_t t = 0; t < sums_.size(); ++t) sums[t].add(std::exchange(sums_[t], {}));
}

}  // namespace lpsgd
