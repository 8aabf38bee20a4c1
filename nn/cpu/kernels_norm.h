// The kernels of batch and group normalisation. Included by kernels_body.h alone, once per instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "nn/cpu/kernels.h"
#include "nn/cpu/kernels_lanes.h"

namespace lpsgd::cpu {
namespace {

template <class T>
void row_moments(const T* x, std::int64_t rows, std::int64_t width, float* sum, float* m2) {
  const float count = static_cast<float>(rows);
  over_channels(rows, width, [&]<int N, class L>(std::int64_t c, std::int64_t first, std::int64_t last) {
    typename L::V shift[N], s[N] = {}, q[N] = {};
    for (int j = 0; j < N; ++j) {
      const std::int64_t at = c + j * L::n;
      shift[j] = L::get(x + at);
      if (first > 0) s[j] = L::get(sum + at), q[j] = L::get(m2 + at);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < N; ++j) {
        const typename L::V d = L::get(x + r * width + c + j * L::n) - shift[j];
        s[j] += d;
        q[j] += d * d;
      }
    }
    for (int j = 0; j < N; ++j) {
      L::put(sum + c + j * L::n, s[j]);
      L::put(m2 + c + j * L::n, q[j]);
    }
  });
  over_values(width, [&]<class L>(std::int64_t c) {
    const typename L::V s = L::get(sum + c);
    L::put(sum + c, s + L::get(x + c) * count);
    L::put(m2 + c, L::get(m2 + c) - s * (s / count));
  });
}

template <bool with_residual, bool relu, bool non_temporal, class T>
void normalize_as(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                  std::int64_t stride, NormConstants k) {
  over_channels(rows, width, [&]<int N, class L>(std::int64_t c, std::int64_t first, std::int64_t last) {
    typename L::V mean[N], scale[N], shift[N];
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n, to = r * stride + c + j * L::n;
        typename L::V v = (L::get(x + at) - mean[j]) * scale[j] + shift[j];
        if constexpr (with_residual) v += L::get(residual + at);
        if constexpr (relu) v = maths::relu(v);
        if constexpr (non_temporal && L::n == lanes)
          store_non_temporal(y + to, v);
        else
          L::put(y + to, v);
      }
    }
  });
  if constexpr (non_temporal) fence_stores();
}

template <bool with_residual, class T>
void normalize_with(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                    std::int64_t stride, NormConstants k, bool relu, bool non_temporal) {
  if constexpr (has_non_temporal_stores && std::is_same_v<T, float>) {
    if (non_temporal && reinterpret_cast<std::uintptr_t>(y) % sizeof(Vector) == 0 && width % lanes == 0 &&
        stride % lanes == 0)
      return (relu ? normalize_as<with_residual, true, true, T>
                   : normalize_as<with_residual, false, true, T>)(x, residual, y, rows, width, stride, k);
  }
  (relu ? normalize_as<with_residual, true, false, T>
        : normalize_as<with_residual, false, false, T>)(x, residual, y, rows, width, stride, k);
}

template <class T>
void normalize(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
               std::int64_t stride, NormConstants k, bool relu, bool non_temporal) {
  (residual ? normalize_with<true, T> : normalize_with<false, T>)(x, residual, y, rows, width, stride, k,
                                                                  relu, non_temporal);
}

template <bool relu, class T>
void norm_gradient_sums_as(const T* g, const T* x, std::int64_t rows, std::int64_t width, std::int64_t stride,
                           NormConstants k, float* sum_g, float* sum_gx) {
  over_channels(rows, width, [&]<int N, class L>(std::int64_t c, std::int64_t first, std::int64_t last) {
    typename L::V mean[N], scale[N], shift[N], a[N] = {}, b[N] = {};
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
      if (first > 0) a[j] = L::get(sum_g + c + j * L::n), b[j] = L::get(sum_gx + c + j * L::n);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        const typename L::V d = L::get(x + at) - mean[j];
        typename L::V v = L::get(g + r * stride + c + j * L::n);
        if constexpr (relu) v = maths::where_positive(d * scale[j] + shift[j], v);
        a[j] += v;
        b[j] += v * d;
      }
    }
    for (int j = 0; j < N; ++j) {
      L::put(sum_g + c + j * L::n, a[j]);
      L::put(sum_gx + c + j * L::n, b[j]);
    }
  });
}

template <class T>
void norm_gradient_sums(const T* g, const T* x, std::int64_t rows, std::int64_t width, std::int64_t stride,
                        NormConstants k, bool relu, float* sum_g, float* sum_gx) {
  (relu ? norm_gradient_sums_as<true, T> : norm_gradient_sums_as<false, T>)(g, x, rows, width, stride, k,
                                                                            sum_g, sum_gx);
}

/// `group`: what is subtracted is not the gradient's mean, but `offset` of the input's gradient.
template <bool relu, bool group, class T>
void norm_gradient_as(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width,
                      std::int64_t stride, NormConstants k, const float* offset, const float* slope) {
  over_channels(rows, width, [&]<int N, class L>(std::int64_t c, std::int64_t first, std::int64_t last) {
    typename L::V mean[N], scale[N], shift[N], off[N], sl[N];
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
      off[j] = L::get(offset + c + j * L::n);
      sl[j] = L::get(slope + c + j * L::n);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        const typename L::V d = L::get(x + at) - mean[j];
        typename L::V v = L::get(g + r * stride + c + j * L::n);
        if constexpr (relu) v = maths::where_positive(d * scale[j] + shift[j], v);
        if constexpr (group)
          L::put(dx + at, v * scale[j] - d * sl[j] - off[j]);
        else
          L::put(dx + at, (v - off[j]) * scale[j] - d * sl[j]);
      }
    }
  });
}

template <class T>
void norm_gradient(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, std::int64_t stride,
                   NormConstants k, bool relu, const float* g_mean, const float* slope) {
  (relu ? norm_gradient_as<true, false, T> : norm_gradient_as<false, false, T>)(g, x, dx, rows, width, stride,
                                                                                k, g_mean, slope);
}

template <class T>
void group_norm_gradient(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width,
                         NormConstants k, bool relu, const float* offset, const float* slope) {
  (relu ? norm_gradient_as<true, true, T> : norm_gradient_as<false, true, T>)(g, x, dx, rows, width, width, k,
                                                                              offset, slope);
}

}  // namespace
}  // namespace lpsgd::cpu
