// Parts of a batch norm that other kernels compute, too: its statistics, its output, its gradient's sums.
#pragma once

#include "nn/cuda/access_device.h"
#include "nn/cuda/kernels.h"

namespace lpsgd::cuda {

/// The constants of V channels from `channel` on: y = (x - mean) * scale + bias.
template <int V>
struct NormConstants {
  float mean[V], scale[V], bias[V];
  /// `norm`: a NormState or NormInput.
  template <class Norm>
  __device__ __forceinline__ NormConstants(const Norm& norm, int channel) {
    load<V>(norm.mean + channel, mean);
    load<V>(norm.scale + channel, scale);
    load<V>(norm.bias + channel, bias);
  }
  __device__ __forceinline__ float normalized(float x, int k) const {
    return (x - mean[k]) * scale[k] + bias[k];
  }
};

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

/// What backward needs of channel c, of the sum of its output's gradients over `rows` values and of that of
/// their products with x - mean.
__device__ __forceinline__ void set_gradients(const NormState& s, int c, double rows, double sum,
                                              double products) {
  const double inverse = s.inverse[c], scale = static_cast<double>(s.weight[c]) * inverse;
  s.weight_gradient[c] = static_cast<float>(products * inverse);
  s.bias_gradient[c] = static_cast<float>(sum);
  s.gradient_mean[c] = static_cast<float>(sum / rows);
  s.slope[c] = static_cast<float>(scale * inverse * inverse * products / rows);
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
