// The vectorised inner loops of the CPU backend: serial, over a range, compiled once per instruction set.
// Every variant does the same operations in the same order, so results do not depend on which one runs.
// Activations and their gradients are of type T: float, or Bf16, which is widened to float32 when read and
// rounded (to nearest even) when written; all else, and all arithmetic, is float32.
//
// A "row" is one pixel's channels, or several pixels' when the per-channel arrays are repeated accordingly:
// `width` floats, with per-channel arrays of `width`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/data_type.h"

namespace lpsgd::cpu {

/// Constants of a normalisation, y = (x - mean) * scale + shift.
struct NormConstants {
  const float* mean;
  const float* scale;
  const float* shift;
};

/// Constants of local response normalisation, y = x * (k + scale * sum of x^2 over `size` channels)^-beta.
struct LrnConstants {
  std::int64_t size;
  float scale, beta, k;
};

template <class T>
struct ActivationKernels {
  /// The same values as float32, and back.
  void (*widen)(const T* x, float* y, std::int64_t n);
  void (*narrow)(const float* x, T* y, std::int64_t n);
  /// sum[c] = sum over rows of x; then m2[c] = sum over rows of (x - sum / rows)^2.
  void (*row_moments)(const T* x, std::int64_t rows, std::int64_t width, float* sum, float* m2);
  /// y = (x - mean) * scale + shift [+ residual] [then relu]. `residual` may be null. `past_cache`: y may be
  /// written without being brought into the cache, which pays where it is too large to be there later.
  void (*normalize)(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                    NormConstants k, bool relu, bool past_cache);
  /// sum_g[c] = sum of g, sum_gx[c] = sum of g * (x - mean); with `relu`, g counts where normalize() gave >
  /// 0.
  void (*norm_gradient_sums)(const T* g, const T* x, std::int64_t rows, std::int64_t width, NormConstants k,
                             bool relu, float* sum_g, float* sum_gx);
  /// dx = (g - g_mean) * scale - (x - mean) * slope, g masked as above. dx may be g.
  void (*norm_gradient)(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, NormConstants k,
                        bool relu, const float* g_mean, const float* slope);
  /// out = sum of terms [then relu]; `out` may be a term. terms >= 1.
  void (*sum)(const T* const* terms, int count, T* out, std::int64_t n, bool relu);
  /// out = sum of terms where `y` > 0, else 0; `y` null: everywhere.
  void (*masked_sum)(const T* const* terms, int count, const T* y, T* out, std::int64_t n);
  /// out[c] = the largest of x[offsets[i] + c], i < count, the first among equals, a NaN before all;
  /// argmax[c] (if not null) = its i. count <= 65536.
  void (*largest)(const T* x, const std::int64_t* offsets, std::int64_t count, std::int64_t channels, T* out,
                  std::uint16_t* argmax);
  void (*sigmoid)(const T* x, T* y, std::int64_t n);
  void (*tanh)(const T* x, T* y, std::int64_t n);
  /// One LSTM step of one sample: `gates` holds the sums of i, f, g, o (`cells` floats each) and gets their
  /// activations; c = f before + i g (`before` null: zeros), output = o tanh(c).
  void (*lstm_cell)(float* gates, const float* before, float* c, T* output, std::int64_t cells);
  /// Backward: `sums_gradient`, which may be `gates`, gets the gradients of the sums. `dc`: in, of c by later
  /// steps; out, of `before`.
  void (*lstm_cell_gradient)(const float* gates, const float* before, const float* c,
                             const T* output_gradient, float* dc, T* sums_gradient, std::int64_t cells);
  /// Rows of `width` channels. `scratch` holds 4 * (width + size) floats.
  void (*lrn)(const T* x, T* y, std::int64_t rows, std::int64_t width, LrnConstants k, float* scratch);
  void (*lrn_gradient)(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, LrnConstants k,
                       float* scratch);
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
  /// out = exp(x - top), and its sum. For x <= top.
  double (*exponentials)(const float* x, float top, float* out, std::int64_t n);
  /// v = mu * v + (g * g_scale + decay * w); w -= lr * (nesterov ? g + mu * v : v). Beside the backend: the
  /// optimizer's pass.
  void (*sgd)(float* w, const float* g, float* v, std::int64_t n, float lr, float mu, float decay,
              float g_scale, bool nesterov);
};

/// The variants that this machine can run, the widest instructions first; and the first of them.
std::span<const Kernels* const> usable_kernels();
const Kernels& kernels();

}  // namespace lpsgd::cpu
