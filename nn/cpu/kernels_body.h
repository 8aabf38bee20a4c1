// The kernels' only definition, included once per instruction set with LPSGD_KERNELS set to its name.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "nn/cpu/kernels.h"
#include "nn/cpu/kernels_lanes.h"

#ifndef LPSGD_KERNELS
#error "define LPSGD_KERNELS"
#endif

#define LPSGD_TEXT2(x) #x
#define LPSGD_TEXT(x) LPSGD_TEXT2(x)

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

template <bool with_residual, bool relu, bool past_cache, class T>
void normalize_as(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                  NormConstants k) {
  over_channels(rows, width, [&]<int N, class L>(std::int64_t c, std::int64_t first, std::int64_t last) {
    typename L::V mean[N], scale[N], shift[N];
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        typename L::V v = (L::get(x + at) - mean[j]) * scale[j] + shift[j];
        if constexpr (with_residual) v += L::get(residual + at);
        if constexpr (relu) v = maths::relu(v);
        if constexpr (past_cache && L::n == lanes)
          stream(y + at, v);
        else
          L::put(y + at, v);
      }
    }
  });
  if constexpr (past_cache) fence_stores();
}

template <bool with_residual, class T>
void normalize_with(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                    NormConstants k, bool relu, bool past_cache) {
  if constexpr (has_streams && std::is_same_v<T, float>) {
    if (past_cache && reinterpret_cast<std::uintptr_t>(y) % sizeof(Vector) == 0 && width % lanes == 0)
      return (relu ? normalize_as<with_residual, true, true, T>
                   : normalize_as<with_residual, false, true, T>)(x, residual, y, rows, width, k);
  }
  (relu ? normalize_as<with_residual, true, false, T>
        : normalize_as<with_residual, false, false, T>)(x, residual, y, rows, width, k);
}

template <class T>
void normalize(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width, NormConstants k,
               bool relu, bool past_cache) {
  (residual ? normalize_with<true, T> : normalize_with<false, T>)(x, residual, y, rows, width, k, relu,
                                                                  past_cache);
}

template <bool relu, class T>
void norm_gradient_sums_as(const T* g, const T* x, std::int64_t rows, std::int64_t width, NormConstants k,
                           float* sum_g, float* sum_gx) {
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
        typename L::V v = L::get(g + at);
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
void norm_gradient_sums(const T* g, const T* x, std::int64_t rows, std::int64_t width, NormConstants k,
                        bool relu, float* sum_g, float* sum_gx) {
  (relu ? norm_gradient_sums_as<true, T> : norm_gradient_sums_as<false, T>)(g, x, rows, width, k, sum_g,
                                                                            sum_gx);
}

template <bool relu, class T>
void norm_gradient_as(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, NormConstants k,
                      const float* g_mean, const float* slope) {
  over_channels(rows, width, [&]<int N, class L>(std::int64_t c, std::int64_t first, std::int64_t last) {
    typename L::V mean[N], scale[N], shift[N], gm[N], sl[N];
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
      gm[j] = L::get(g_mean + c + j * L::n);
      sl[j] = L::get(slope + c + j * L::n);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        const typename L::V d = L::get(x + at) - mean[j];
        typename L::V v = L::get(g + at);
        if constexpr (relu) v = maths::where_positive(d * scale[j] + shift[j], v);
        L::put(dx + at, (v - gm[j]) * scale[j] - d * sl[j]);
      }
    }
  });
}

template <class T>
void norm_gradient(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, NormConstants k,
                   bool relu, const float* g_mean, const float* slope) {
  (relu ? norm_gradient_as<true, T> : norm_gradient_as<false, T>)(g, x, dx, rows, width, k, g_mean, slope);
}

template <class T>
void widen(const T* x, float* y, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) { L::put(y + i, L::get(x + i)); });
}

template <class T>
void narrow(const float* x, T* y, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) { L::put(y + i, L::get(x + i)); });
}

/// body(Lane, i, sum of the terms' values at i); for one or two terms their addresses stay in registers.
template <int count, class T, class Body>
void each_sum_as(const T* const* terms, int any, std::int64_t n, const Body& body) {
  const T* t[count > 0 ? count : 1];
  for (int j = 0; j < count; ++j) t[j] = terms[j];
  over_values(n, [&]<class L>(std::int64_t i) {
    typename L::V v;
    if constexpr (count > 0) {
      v = L::get(t[0] + i);
      for (int j = 1; j < count; ++j) v += L::get(t[j] + i);
    } else {
      v = L::get(terms[0] + i);
      for (int j = 1; j < any; ++j) v += L::get(terms[j] + i);
    }
    body.template operator()<L>(i, v);
  });
}

template <class T, class Body>
void each_sum(const T* const* terms, int count, std::int64_t n, const Body& body) {
  if (count == 1)
    each_sum_as<1>(terms, count, n, body);
  else if (count == 2)
    each_sum_as<2>(terms, count, n, body);
  else
    each_sum_as<0>(terms, count, n, body);
}

template <class T>
void sum(const T* const* terms, int count, T* out, std::int64_t n, bool relu) {
  if (relu)
    each_sum(terms, count, n,
             [&]<class L>(std::int64_t i, typename L::V v) { L::put(out + i, maths::relu(v)); });
  else
    each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) { L::put(out + i, v); });
}

template <class T>
void masked_sum(const T* const* terms, int count, const T* y, T* out, std::int64_t n) {
  if (!y)
    sum(terms, count, out, n, false);
  else
    each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) {
      L::put(out + i, maths::where_positive(L::get(y + i), v));
    });
}

inline Integers splat(Vector, std::int32_t i) {
  return Integers{} + i;
}
inline std::int32_t splat(float, std::int32_t i) {
  return i;
}
inline void put_halves(std::uint16_t* p, Integers v) {
  *reinterpret_cast<Halves*>(p) = low_halves(reinterpret_cast<Words>(v));
}
inline void put_halves(std::uint16_t* p, std::int32_t v) {
  *p = static_cast<std::uint16_t>(v);
}

template <class T>
void largest(const T* x, const std::int64_t* offsets, std::int64_t count, std::int64_t channels, T* out,
             std::uint16_t* argmax) {
  over_values(channels, [&]<class L>(std::int64_t c) {
    typename L::V best = L::get(x + offsets[0] + c);
    auto where = splat(best, 0);
    for (std::int32_t i = 1; i < count; ++i) {
      const typename L::V v = L::get(x + offsets[i] + c);
      const auto keep = (v <= best) | (best != best);  // false where v is greater or the first NaN
      where = keep ? where : splat(best, i);
      best = keep ? best : v;
    }
    L::put(out + c, best);
    if (argmax) put_halves(argmax + c, where);
  });
}

template <class T>
void sigmoid(const T* x, T* y, std::int64_t n) {
  over_values(
      n, [&]<class L>(std::int64_t i) { L::put(y + i, maths::sigmoid<typename L::Maths>(L::get(x + i))); });
}

template <class T>
void tanh(const T* x, T* y, std::int64_t n) {
  over_values(n,
              [&]<class L>(std::int64_t i) { L::put(y + i, maths::tanh<typename L::Maths>(L::get(x + i))); });
}

double exponentials(const float* x, float top, float* out, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) {
    L::put(out + i, maths::exp<typename L::Maths>(L::get(x + i) - top));
  });
  double parts[8] = {};
  for (std::int64_t i = 0; i < n; ++i) parts[i % 8] += static_cast<double>(out[i]);
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

template <class T>
void lstm_cell(float* gates, const float* before, float* c, T* output, std::int64_t cells) {
  over_values(cells, [&]<class L>(std::int64_t j) {
    maths::LstmCell<typename L::Maths> cell{L::get(gates + j), L::get(gates + cells + j),
                                            L::get(gates + 2 * cells + j), L::get(gates + 3 * cells + j)};
    cell.forward(before ? L::get(before + j) : typename L::V{});
    L::put(gates + j, cell.i);
    L::put(gates + cells + j, cell.f);
    L::put(gates + 2 * cells + j, cell.g);
    L::put(gates + 3 * cells + j, cell.o);
    L::put(c + j, cell.cell);
    L::put(output + j, cell.output);
  });
}

template <class T>
void lstm_cell_gradient(const float* gates, const float* before, const float* c, const T* output_gradient,
                        float* dc, T* sums_gradient, std::int64_t cells) {
  over_values(cells, [&]<class L>(std::int64_t j) {
    maths::LstmCell<typename L::Maths> cell{L::get(gates + j), L::get(gates + cells + j),
                                            L::get(gates + 2 * cells + j), L::get(gates + 3 * cells + j),
                                            L::get(c + j)};
    typename L::V change = L::get(dc + j);
    cell.backward(before ? L::get(before + j) : typename L::V{}, L::get(output_gradient + j), change);
    L::put(sums_gradient + j, cell.i);
    L::put(sums_gradient + cells + j, cell.f);
    L::put(sums_gradient + 2 * cells + j, cell.g);
    L::put(sums_gradient + 3 * cells + j, cell.o);
    L::put(dc + j, change);
  });
}

/// power = d^-beta.
void negative_power(const float* d, float* power, std::int64_t n, float beta) {
  if (beta == 0.75f) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float r = 1.0f / std::sqrt(d[i]);
      power[i] = r * std::sqrt(r);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) power[i] = std::pow(d[i], -beta);
  }
}

/// out[c] = sum of values[c + j], j from 0 to size - 1.
void window_sums(const float* values, float* out, std::int64_t n, std::int64_t size) {
  over_values(n, [&]<class L>(std::int64_t c) {
    typename L::V sum = L::get(values + c);
    for (std::int64_t j = 1; j < size; ++j) sum += L::get(values + c + j);
    L::put(out + c, sum);
  });
}

/// The parts of the scratch: values with a zero border before and behind them, and two arrays of a row.
struct LrnScratch {
  LrnScratch(float* p, std::int64_t width, std::int64_t size)
      : bordered(p), a(p + width + size), b(a + width), c(b + width) {
    std::fill(bordered, bordered + width + size, 0.0f);
  }
  float *bordered, *a, *b, *c;
};

/// a = k + scale * window's sum of squares; b = a^-beta.
template <class T>
void lrn_row(const T* x, std::int64_t width, LrnConstants k, const LrnScratch& s) {
  float* squares = s.bordered + k.size / 2;
  over_values(width, [&]<class L>(std::int64_t c) {
    const typename L::V v = L::get(x + c);
    L::put(squares + c, v * v);
  });
  window_sums(s.bordered, s.a, width, k.size);
  for (std::int64_t c = 0; c < width; ++c) s.a[c] = s.a[c] * k.scale + k.k;
  negative_power(s.a, s.b, width, k.beta);
}

template <class T>
void lrn(const T* x, T* y, std::int64_t rows, std::int64_t width, LrnConstants k, float* scratch) {
  const LrnScratch s(scratch, width, k.size);
  for (; rows > 0; --rows, x += width, y += width) {
    lrn_row(x, width, k, s);
    over_values(width, [&]<class L>(std::int64_t c) { L::put(y + c, L::get(x + c) * L::get(s.b + c)); });
  }
}

template <class T>
void lrn_gradient(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width, LrnConstants k,
                  float* scratch) {
  const LrnScratch s(scratch, width, k.size);
  float* terms =
      s.bordered + (k.size - 1) / 2;  // c lies in the windows of c - (size - 1) / 2 to c + size / 2
  const float factor = 2 * k.scale * k.beta;
  for (; rows > 0; --rows, g += width, x += width, dx += width) {
    std::fill(s.bordered, s.bordered + width + k.size, 0.0f);
    lrn_row(x, width, k, s);
    std::fill(s.bordered, s.bordered + width + k.size, 0.0f);
    over_values(width, [&]<class L>(std::int64_t c) {
      L::put(terms + c, L::get(g + c) * L::get(x + c) * L::get(s.b + c) / L::get(s.a + c));
    });
    window_sums(s.bordered, s.c, width, k.size);
    over_values(width, [&]<class L>(std::int64_t c) {
      L::put(dx + c, L::get(g + c) * L::get(s.b + c) - factor * L::get(x + c) * L::get(s.c + c));
    });
  }
}

void sgd(float* w, const float* g, float* v, std::int64_t n, float lr, float mu, float decay, float g_scale,
         bool nesterov) {
  over_values(n, [&]<class L>(std::int64_t i) {
    alignas(sizeof(typename L::V)) typename L::V weight = L::get(w + i);
    alignas(sizeof(typename L::V)) typename L::V momentum = L::get(v + i);
    maths::sgd(weight, L::get(g + i), momentum, lr, mu, decay, g_scale, nesterov);
    L::put(v + i, momentum);
    L::put(w + i, weight);
  });
}

template <class T>
constexpr ActivationKernels<T> activation_kernels{
    widen<T>,         narrow<T>,    row_moments<T>,        normalize<T>, norm_gradient_sums<T>,
    norm_gradient<T>, sum<T>,       masked_sum<T>,         largest<T>,   sigmoid<T>,
    tanh<T>,          lstm_cell<T>, lstm_cell_gradient<T>, lrn<T>,       lrn_gradient<T>};

}  // namespace

extern const Kernels LPSGD_KERNELS;
const Kernels LPSGD_KERNELS{LPSGD_TEXT(LPSGD_KERNELS), activation_kernels<float>, activation_kernels<Bf16>,
                            exponentials, sgd};

}  // namespace lpsgd::cpu
