// The kernels' only definition, included once per instruction set with LPSGD_KERNELS set to its name. Vectors
// are of 16 floats everywhere; narrower machines take several registers for one.
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

/// One lane or sixteen: the loops below are written once over both.
struct Wide {
  using V = Vector;
  static V get(const float* p) { return load(p); }
  static void put(float* p, V v) { store(p, v); }
  static constexpr std::int64_t n = lanes;
};
struct Narrow {
  using V = float;
  static V get(const float* p) { return *p; }
  static void put(float* p, V v) { *p = v; }
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

void row_moments(const float* x, std::int64_t rows, std::int64_t width, float* sum, float* m2) {
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

template <bool with_residual, bool relu>
void normalize_as(const float* x, const float* residual, float* y, std::int64_t rows, std::int64_t width,
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

void normalize(const float* x, const float* residual, float* y, std::int64_t rows, std::int64_t width,
               NormConstants k, bool relu) {
  if (residual)
    (relu ? normalize_as<true, true> : normalize_as<true, false>)(x, residual, y, rows, width, k);
  else
    (relu ? normalize_as<false, true> : normalize_as<false, false>)(x, residual, y, rows, width, k);
}

template <bool relu>
void norm_gradient_sums_as(const float* g, const float* x, std::int64_t rows, std::int64_t width,
                           NormConstants k, float* sum_g, float* sum_gx) {
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

void norm_gradient_sums(const float* g, const float* x, std::int64_t rows, std::int64_t width,
                        NormConstants k, bool relu, float* sum_g, float* sum_gx) {
  (relu ? norm_gradient_sums_as<true> : norm_gradient_sums_as<false>)(g, x, rows, width, k, sum_g, sum_gx);
}

template <bool relu>
void norm_gradient_as(const float* g, const float* x, float* dx, std::int64_t rows, std::int64_t width,
                      NormConstants k, const float* g_mean, const float* slope) {
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

void norm_gradient(const float* g, const float* x, float* dx, std::int64_t rows, std::int64_t width,
                   NormConstants k, bool relu, const float* g_mean, const float* slope) {
  (relu ? norm_gradient_as<true> : norm_gradient_as<false>)(g, x, dx, rows, width, k, g_mean, slope);
}

/// Calls body(Lane, i) for every block of Lane::n values.
template <class Body>
inline void over_values(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body.template operator()<Wide>(i);
  for (; i < n; ++i) body.template operator()<Narrow>(i);
}

template <int count>
void sum_as(const float* const* terms, int any, float* out, std::int64_t n, bool relu) {
  const float* t[count > 0 ? count : 1];
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
    L::put(out + i, relu ? relu_of(v) : v);
  });
}

void sum(const float* const* terms, int count, float* out, std::int64_t n, bool relu) {
  (count == 1 ? sum_as<1> : count == 2 ? sum_as<2> : sum_as<0>)(terms, count, out, n, relu);
}

template <int count>
void masked_sum_as(const float* const* terms, int any, const float* y, float* out, std::int64_t n) {
  const float* t[count > 0 ? count : 1];
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
    L::put(out + i, where_positive(L::get(y + i), v));
  });
}

void masked_sum(const float* const* terms, int count, const float* y, float* out, std::int64_t n) {
  if (!y) {
    sum(terms, count, out, n, false);
    return;
  }
  (count == 1 ? masked_sum_as<1> : count == 2 ? masked_sum_as<2> : masked_sum_as<0>)(terms, count, y, out, n);
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

}  // namespace

extern const Kernels LPSGD_KERNELS;
const Kernels LPSGD_KERNELS{LPSGD_TEXT(LPSGD_KERNELS),
                            row_moments,
                            normalize,
                            norm_gradient_sums,
                            norm_gradient,
                            sum,
                            masked_sum,
                            sgd};

}  // namespace lpsgd::cpu
