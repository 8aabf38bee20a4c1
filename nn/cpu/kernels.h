// The vectorised inner loops of the CPU backend. They are compiled once for each instruction set. Each runs
// on one thread. All variants do the same operations in the same order, so the result does not depend on the
// variant.
//
// Activations and their gradients are of type T, which is float or Bf16. A Bf16 is widened to float32 when it
// is read and rounded to nearest even when it is written. Everything else, and all arithmetic, is float32.
//
// A row is the channels of one pixel: `width` values. It may also be several pixels; per-channel arrays then
// repeat accordingly and have `width` values, too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/data_type.h"
#include "nn/dropout.h"
#include "nn/maths_device.h"

namespace lpsgd::cpu {

/// The constants of a normalisation, one of each per channel: y = (x - mean) * scale + shift.
struct NormConstants {
  const float* mean;
  const float* scale;
  const float* shift;
};

/// The constants of local response normalisation: y = x * (k + scale * sum of x^2 over `size`
/// channels)^-beta.
struct LrnConstants {
  std::int64_t size;
  float scale, beta, k;
};

/// The constants of layer normalisation; weight and bias have a value for each of a row's.
struct LayerNormConstants {
  const float* weight;
  const float* bias;
  float eps;
};

struct SoftmaxRow {
  float max;          // of the scores
  double sum;         // of exp(score - max)
  std::int64_t rank;  // classes with a greater score than the label, or an equal one and a lower index
};

template <class T>
struct ActivationKernels {
  // Convert to float32 and from it.
  void (*widen)(const T* x, float* y, std::int64_t n);
  void (*narrow)(const float* x, T* y, std::int64_t n);
  /// sum[c] = sum over rows of x, and m2[c] = sum over rows of (x - sum / rows)^2.
  void (*row_moments)(const T* x, std::int64_t rows, std::int64_t width, float* sum, float* m2);
  /// y = (x - mean) * scale + shift [+ residual] [then relu]. `residual` may be null. The rows of y are
  /// `stride` values apart, those of the others `width`. With `non_temporal`, y is written past the caches if
  /// possible, which is faster for an output that is too large to stay there.
  void (*normalize)(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                    std::int64_t stride, NormConstants k, bool relu, bool non_temporal);
  /// sum_g[c] = sum over rows of g, and sum_gx[c] = sum of g * (x - mean). The rows of g are `stride` values
  /// apart. With `relu`, g counts as 0 where the result of normalize() was not positive.
  void (*norm_gradient_sums)(const T* g, const T* x, std::int64_t rows, std::int64_t width,
                             std::int64_t stride, NormConstants k, bool relu, float* sum_g, float* sum_gx);
  /// dx = (g - g_mean) * scale - (x - mean) * slope, with g as above. dx may be g if its rows are `width`
  /// values apart.
  void (*norm_gradient)(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width,
                        std::int64_t stride, NormConstants k, bool relu, const float* g_mean,
                        const float* slope);
  /// dx = g * scale - (x - mean) * slope - offset, with g as above, whose rows are `width` values apart.
  void (*group_norm_gradient)(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width,
                              NormConstants k, bool relu, const float* offset, const float* slope);
  /// out = sum of terms [then relu]. There is at least one term; `out` may be one of them.
  void (*sum)(const T* const* terms, int count, T* out, std::int64_t n, bool relu);
  /// sum[c] += the sum over rows of x, whose rows are `stride` values apart.
  void (*add_rows)(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, float* sum);
  /// out = sum of terms where y > 0, and 0 elsewhere. If y is null, as sum().
  void (*masked_sum)(const T* const* terms, int count, const T* y, T* out, std::int64_t n);
  /// out = factor * sum of terms. `out` may be one of them.
  void (*scaled_sum)(const T* const* terms, int count, float factor, T* out, std::int64_t n);
  /// out = factors * sum of terms, and 0 where the factor is 0. `out` may be one of them.
  void (*drop)(const float* factors, const T* const* terms, int count, T* out, std::int64_t n);
  /// out[c] = the maximum of x[offsets[i] + c] over i < count, and argmax[c] = its i: the first of equal
  /// values, or the first NaN. `argmax` may be null. count <= 65536.
  void (*window_max)(const T* x, const std::int64_t* offsets, std::int64_t count, std::int64_t channels,
                     T* out, std::uint16_t* argmax);
  /// Of each Activation: y of x, and dx of the sum of gradients and of `at` (maths::activation_gradient). dx
  /// may be one of the gradients.
  using ActivationKernel = void (*)(const T* x, T* y, std::int64_t n);
  using ActivationGradientKernel = void (*)(const T* const* gradients, int count, const T* at, T* dx,
                                            std::int64_t n);
  std::array<ActivationKernel, activation_kinds> activation;
  std::array<ActivationGradientKernel, activation_kinds> activation_gradient;
  /// out = x times the row `factor`, row by row.
  void (*multiply)(const T* x, const T* factor, T* out, std::int64_t rows, std::int64_t width);
  /// sum[c] += the sum over rows of x * y.
  void (*add_products)(const T* x, const T* y, std::int64_t rows, std::int64_t width, float* sum);
  /// y = (x - mean) * scale * weight + bias, mean and scale = 1 / sqrt(variance + eps) of each row. These are
  /// stored, one for each row, unless `mean` is null.
  void (*layer_norm)(const T* x, T* y, std::int64_t rows, std::int64_t width, LayerNormConstants k,
                     float* mean, float* scale);
  /// Writes dx, unless it is null, and adds to dweight and dbias, which have `width` values.
  void (*layer_norm_gradient)(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width,
                              const float* weight, const float* mean, const float* scale, float* dweight,
                              float* dbias);
  /// One LSTM step of one sample. `gates` holds the sums of i, f, g and o (`cells` floats each), which become
  /// their activations. c = f before + i g, output = o tanh(c).
  void (*lstm_cell)(float* gates, const float* before, float* c, T* output, std::int64_t cells);
  /// Writes the gradients of the gates' sums to `sums_gradient`, which may be `gates`. `dc` holds the
  /// gradient of c from later steps, and receives that of `before`.
  void (*lstm_cell_gradient)(const float* gates, const float* before, const float* c,
                             const T* output_gradient, float* dc, T* sums_gradient, std::int64_t cells);
  // `scratch` holds 4 * (width + size) floats.
  void (*lrn)(const T* x, T* y, std::int64_t rows, std::int64_t width, LrnConstants k, float* scratch);
  void (*lrn_gradient)(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, LrnConstants k,
                       float* scratch);
  /// Of a row of class scores and the label's score in it.
  SoftmaxRow (*softmax_row)(const T* scores, std::int64_t classes, std::int64_t label);
  /// out = exp(scores - max) * scale - shift.
  void (*softmax)(const T* scores, float max, float scale, float shift, T* out, std::int64_t classes);
};

struct Kernels {
  const char* name;
  ActivationKernels<float> f32;
  ActivationKernels<Bf16> bf16;
  template <class T>
  const ActivationKernels<T>& of() const {
    if constexpr (std::is_same_v<T, float>)
      return f32;
    else
      return bf16;
  }
  /// Replaces a row of scores, at least one, by the softmax of scale * scores. Returns the logarithm of the
  /// sum of exp(scale * score).
  float (*softmax_weights)(float* scores, std::int64_t n, float scale);
  /// The same, with that logarithm known.
  void (*softmax_weights_again)(float* scores, std::int64_t n, float scale, float log_sum);
  /// Replaces the gradient of the weights by that of the scores.
  void (*softmax_weights_gradient)(const float* weights, float* gradient, std::int64_t n, float scale);
  /// factors[i] = 0 if value i is dropped, d.scale if it is kept: n values of the sample at `position`, from
  /// the first one of `block` on.
  void (*dropout_factors)(const DropoutDraws& d, std::uint32_t block, std::uint32_t position,
                          std::uint32_t step, std::int64_t n, float* factors);
  /// The optimizer's pass (nn/optimizer.h): g = gain * (g * g_scale + decay * w); v = mu * v + g;
  /// w -= lr * (nesterov ? g + mu * v : v).
  void (*sgd)(float* w, const float* g, float* v, std::int64_t n, maths::SgdRates rates, float decay,
              float g_scale, bool nesterov);
  /// The same of Adam: decayed weights are multiplied by `shrink`, then g = g * g_scale + decay * w.
  void (*adam)(float* w, const float* g, float* m, float* v, std::int64_t n, maths::AdamRates rates,
               float decay, float shrink, float g_scale);
};

/// The variants that this machine can run, those with the widest instructions first.
std::span<const Kernels* const> usable_kernels();
/// The first of them.
const Kernels& kernels();

}  // namespace lpsgd::cpu
