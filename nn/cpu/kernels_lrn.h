// The kernels of local response normalisation. Included by kernels_body.h alone, once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nn/cpu/kernels.h"
#include "nn/cpu/kernels_lanes.h"

namespace lpsgd::cpu {
namespace {

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

}  // namespace
}  // namespace lpsgd::cpu
