// The kernels' only definition, included once per instruction set with LPSGD_KERNELS set to its name. Vectors
// are of 16 floats everywhere; narrower machines take several registers for one.
#include <algorithm>
#include <cmath>

#include "nn/cpu/kernels.h"

#ifndef LPSGD_KERNELS
#error "define LPSGD_KERNELS"
#endif

#define LPSGD_TEXT2(x) #x
#define LPSGD_TEXT(x) LPSGD_TEXT2(x)

namespace lpsgd::cpu {
namespace {

constexpr std::int64_t lanes = 16;
typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));

inline Vector load(const float* p) {
  return *reinterpret_cast<const Vector*>(p);
}
inline void store(float* p, Vector v) {
  *reinterpret_cast<Vector*>(p) = v;
}

typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
typedef std::uint32_t Words __attribute__((vector_size(64)));

inline Vector load(const Bf16* p) {
  const Halves halves = *reinterpret_cast<const Halves*>(p);
  return reinterpret_cast<Vector>(__builtin_convertvector(halves, Words) << 16);
}
/// As narrow<Bf16>() of core/data_type.h does it.
inline void store(Bf16* p, Vector v) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words out = v != v ? Words{} + 0x7fc0u : rounded;
  *reinterpret_cast<Halves*>(p) = __builtin_convertvector(out, Halves);
}

// A NaN passes both.
inline Vector relu_of(Vector v) {
  return v < 0.0f ? Vector{} : v;
}
inline float relu_of(float v) {
  return v < 0.0f ? 0.0f : v;
}
inline Vector where_positive(Vector y, Vector g) {
  return y <= 0.0f ? Vector{} : g;
}
inline float where_positive(float y, float g) {
  return y <= 0.0f ? 0.0f : g;
}

typedef std::int32_t Integers __attribute__((vector_size(64)));

inline Integers to_integers(Vector v) {
  return __builtin_convertvector(v, Integers);
}
inline std::int32_t to_integers(float v) {
  return static_cast<std::int32_t>(v);
}
inline Vector from_bits(Integers bits) {
  return reinterpret_cast<Vector>(bits);
}
inline float from_bits(std::int32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// exp(x) to about one unit in the last place; 0 below -87, 2^127 above 88. A NaN gives a NaN.
template <class V>
inline V exp_of(V x) {
  constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float to_even = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V low = x - x - 87.0f, high = x - x + 88.0f;
  const V bounded = x < low ? low : (x > high ? high : x);
  const V n = (bounded * log2_e + to_even) - to_even;
  const V r = (bounded - n * ln2_high) - n * ln2_low;  // in +-ln(2)/2, where Taylor's series is short
  V p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  const V scaled = p * from_bits((to_integers(n) + 127) << 23);
  return x < low ? x - x : scaled;
}

template <class V>
inline V sigmoid_of(V x) {
  return 1.0f / (1.0f + exp_of(-x));
}

/// Near 0, where 1 - 2 / (exp(2x) + 1) cancels, the continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))).
template <class V>
inline V tanh_of(V x) {
  const V size = x < 0.0f ? -x : x;
  const V far = 1.0f - 2.0f / (exp_of(size + size) + 1.0f);
  const V s = x * x;
  const V near = size / (1.0f + s / (3.0f + s / (5.0f + s / (7.0f + s / (9.0f + s / 11.0f)))));
  const V y = size < 0.75f + (x - x) ? near : far;
  return x < 0.0f ? -y : y;
}

/// One lane or sixteen: the loops below are written once over both.
struct Wide {
  using V = Vector;
  template <class T>
  static V get(const T* p) {
    return load(p);
  }
  template <class T>
  static void put(T* p, V v) {
    store(p, v);
  }
  static constexpr std::int64_t n = lanes;
};
struct Narrow {
  using V = float;
  template <class T>
  static V get(const T* p) {
    return lpsgd::widen(*p);
  }
  template <class T>
  static void put(T* p, V v) {
    *p = lpsgd::narrow<T>(v);
  }
  static constexpr std::int64_t n = 1;
};

/// Calls body(integral constant N, Lane, first channel) so that blocks of N * Lane::n channels cover a row.
template <class Body>
inline void over_channels(std::int64_t width, const Body& body) {
  std::int64_t c = 0;
  for (; c + 4 * lanes <= width; c += 4 * lanes) body.template operator()<4, Wide>(c);
  for (; c + lanes <= width; c += lanes) body.template operator()<1, Wide>(c);
  for (; c < width; ++c) body.template operator()<1, Narrow>(c);
}

template <class T>
void row_moments(const T* x, std::int64_t rows, std::int64_t width, float* sum, float* m2) {
  const float count = static_cast<float>(rows);
  over_channels(width, [&]<int N, class L>(std::int64_t c) {
    typename L::V s[N] = {}, q[N] = {};
    for (std::int64_t r = 0; r < rows; ++r)
      for (int j = 0; j < N; ++j) s[j] += L::get(x + r * width + c + j * L::n);
    typename L::V mean[N];
    for (int j = 0; j < N; ++j) mean[j] = s[j] / count;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < N; ++j) {
        const typename L::V d = L::get(x + r * width + c + j * L::n) - mean[j];
        q[j] += d * d;
      }
    }
    for (int j = 0; j < N; ++j) {
      L::put(sum + c + j * L::n, s[j]);
      L::put(m2 + c + j * L::n, q[j]);
    }
  });
}

template <bool with_residual, bool relu, class T>
void normalize_as(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width,
                  NormConstants k) {
  over_channels(width, [&]<int N, class L>(std::int64_t c) {
    typename L::V mean[N], scale[N], shift[N];
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        typename L::V v = (L::get(x + at) - mean[j]) * scale[j] + shift[j];
        if constexpr (with_residual) v += L::get(residual + at);
        if constexpr (relu) v = relu_of(v);
        L::put(y + at, v);
      }
    }
  });
}

template <class T>
void normalize(const T* x, const T* residual, T* y, std::int64_t rows, std::int64_t width, NormConstants k,
               bool relu) {
  if (residual)
    (relu ? normalize_as<true, true, T> : normalize_as<true, false, T>)(x, residual, y, rows, width, k);
  else
    (relu ? normalize_as<false, true, T> : normalize_as<false, false, T>)(x, residual, y, rows, width, k);
}

template <bool relu, class T>
void norm_gradient_sums_as(const T* g, const T* x, std::int64_t rows, std::int64_t width, NormConstants k,
                           float* sum_g, float* sum_gx) {
  over_channels(width, [&]<int N, class L>(std::int64_t c) {
    typename L::V mean[N], scale[N], shift[N], a[N] = {}, b[N] = {};
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        const typename L::V d = L::get(x + at) - mean[j];
        typename L::V v = L::get(g + at);
        if constexpr (relu) v = where_positive(d * scale[j] + shift[j], v);
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
  over_channels(width, [&]<int N, class L>(std::int64_t c) {
    typename L::V mean[N], scale[N], shift[N], gm[N], sl[N];
    for (int j = 0; j < N; ++j) {
      mean[j] = L::get(k.mean + c + j * L::n);
      scale[j] = L::get(k.scale + c + j * L::n);
      shift[j] = L::get(k.shift + c + j * L::n);
      gm[j] = L::get(g_mean + c + j * L::n);
      sl[j] = L::get(slope + c + j * L::n);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int j = 0; j < N; ++j) {
        const std::int64_t at = r * width + c + j * L::n;
        const typename L::V d = L::get(x + at) - mean[j];
        typename L::V v = L::get(g + at);
        if constexpr (relu) v = where_positive(d * scale[j] + shift[j], v);
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

/// Calls body(Lane, i) for every block of Lane::n values.
template <class Body>
inline void over_values(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body.template operator()<Wide>(i);
  for (; i < n; ++i) body.template operator()<Narrow>(i);
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
    each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) { L::put(out + i, relu_of(v)); });
  else
    each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) { L::put(out + i, v); });
}

template <class T>
void masked_sum(const T* const* terms, int count, const T* y, T* out, std::int64_t n) {
  if (!y)
    sum(terms, count, out, n, false);
  else
    each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) {
      L::put(out + i, where_positive(L::get(y + i), v));
    });
}

inline Integers splat(Vector, std::int32_t i) {
  return Integers{} + i;
}
inline std::int32_t splat(float, std::int32_t i) {
  return i;
}
inline void put_integers(std::int32_t* p, Integers v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
inline void put_integers(std::int32_t* p, std::int32_t v) {
  *p = v;
}

template <class T>
void largest(const T* const* pixels, const std::int32_t* numbers, std::int64_t count, std::int64_t channels,
             T* out, std::int32_t* place) {
  over_values(channels, [&]<class L>(std::int64_t c) {
    typename L::V best = L::get(pixels[0] + c);
    auto where = splat(best, numbers[0]);
    for (std::int64_t i = 1; i < count; ++i) {
      const typename L::V x = L::get(pixels[i] + c);
      const auto keep = (x <= best) | (best != best);  // false where x is greater or the first NaN
      where = keep ? where : splat(best, numbers[i]);
      best = keep ? best : x;
    }
    L::put(out + c, best);
    if (place) put_integers(place + c, where);
  });
}

template <class T>
void sigmoid(const T* x, T* y, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) { L::put(y + i, sigmoid_of(L::get(x + i))); });
}

template <class T>
void tanh(const T* x, T* y, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) { L::put(y + i, tanh_of(L::get(x + i))); });
}

double exponentials(const float* x, float top, float* out, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) { L::put(out + i, exp_of(L::get(x + i) - top)); });
  double parts[8] = {};
  for (std::int64_t i = 0; i < n; ++i) parts[i % 8] += static_cast<double>(out[i]);
  return ((parts[0] + parts[1]) + (parts[2] + parts[3])) + ((parts[4] + parts[5]) + (parts[6] + parts[7]));
}

template <class T>
void lstm_cell(float* gates, const float* before, float* c, T* output, std::int64_t cells) {
  over_values(cells, [&]<class L>(std::int64_t j) {
    const typename L::V i = sigmoid_of(L::get(gates + j)), f = sigmoid_of(L::get(gates + cells + j)),
                        g = tanh_of(L::get(gates + 2 * cells + j)),
                        o = sigmoid_of(L::get(gates + 3 * cells + j));
    typename L::V cell = i * g;
    if (before) cell += f * L::get(before + j);
    L::put(gates + j, i);
    L::put(gates + cells + j, f);
    L::put(gates + 2 * cells + j, g);
    L::put(gates + 3 * cells + j, o);
    L::put(c + j, cell);
    L::put(output + j, o * tanh_of(cell));
  });
}

template <class T>
void lstm_cell_gradient(const float* gates, const float* before, const float* c, const T* output_gradient,
                        float* dc, T* sums_gradient, std::int64_t cells) {
  over_values(cells, [&]<class L>(std::int64_t j) {
    const typename L::V i = L::get(gates + j), f = L::get(gates + cells + j),
                        g = L::get(gates + 2 * cells + j), o = L::get(gates + 3 * cells + j),
                        dy = L::get(output_gradient + j), y = tanh_of(L::get(c + j));
    const typename L::V d = L::get(dc + j) + dy * o * (1.0f - y * y);
    L::put(sums_gradient + j, d * g * i * (1.0f - i));
    L::put(sums_gradient + cells + j, before ? d * L::get(before + j) * f * (1.0f - f) : d - d);
    L::put(sums_gradient + 2 * cells + j, d * i * (1.0f - g * g));
    L::put(sums_gradient + 3 * cells + j, dy * y * o * (1.0f - o));
    L::put(dc + j, d * f);
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
    const typename L::V weight = L::get(w + i);
    const typename L::V d = L::get(g + i) * g_scale + weight * decay;
    const typename L::V m = L::get(v + i) * mu + d;
    L::put(v + i, m);
    L::put(w + i, weight - (nesterov ? d + m * mu : m) * lr);
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
