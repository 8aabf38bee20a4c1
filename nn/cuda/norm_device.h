// What the kernels that take a batch norm's statistics do with them.
#pragma once

#include "nn/cuda/kernels.h"

namespace lpsgd::cuda {

__device__ __forceinline__ void set_constants(const NormState& s, int c, double mean, double variance) {
  const double inverse = 1 / sqrt(variance + s.eps);
  s.inverse[c] = inverse;
  s.mean[c] = static_cast<float>(mean);
  s.scale[c] = static_cast<float>(static_cast<double>(s.weight[c]) * inverse);
}

/// Of channel c over `rows` values: their mean, and the sum `m2` of the squares of differences from it.
__device__ __forceinline__ void set_statistics(const NormState& s, int c, double rows, double mean,
                                               double m2) {
  const double unbiased = rows > 1 ? rows / (rows - 1) : 1.0, m = s.momentum;
  const double variance = m2 / rows;
  s.running_mean[c] = static_cast<float>((1 - m) * static_cast<double>(s.running_mean[c]) + m * mean);
  s.running_variance[c] =
      static_cast<float>((1 - m) * static_cast<double>(s.running_variance[c]) + m * variance * unbiased);
  set_constants(s, c, mean, variance);
}

/// Mean and M2, the sum of squares of differences from the mean, of n values, whose differences from `pivot`
/// have these sums.
__device__ __forceinline__ double2 moments_of(double n, double pivot, double sum, double squares) {
  const double shift = sum / n, m2 = squares - sum * shift;
  return make_double2(pivot + shift, m2 > 0 ? m2 : 0);
}
/// Adds n values, whose moments are `part`, to sums of differences from `pivot`.
__device__ __forceinline__ void add_moments(double n, double pivot, const double2& part, double& sum,
                                            double& squares) {
  const double d = part.x - pivot;
  sum += n * d;
  squares += part.y + n * d * d;
}

}  // namespace lpsgd::cuda
