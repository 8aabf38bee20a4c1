// Layer normalisation, softmax, and draws of dropout: kernels over rows. A row's sum is taken in 16
// lanes, which are then added in halves; the values that do not fill a vector come last. Included by
// kernels_body.h alone, once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/philox_lanes.h"
#include "nn/cpu/kernels_lanes.h"

namespace lpsgd::cpu {
namespace {

class RowSum {
 public:
  void add(Vector v) { wide_ += v; }
  void add(float v) { rest_ += v; }
  float total() const {
    alignas(64) float values[lanes];
    store(values, wide_);
    for (std::int64_t half = lanes / 2; half > 0; half /= 2)
      for (std::int64_t i = 0; i < half; ++i) values[i] += values[i + half];
    return values[0] + rest_;
  }

 private:
  Vector wide_{};
  float rest_ = 0;
};

template <class T>
void layer_norm(const T* x, T* y, std::int64_t rows, std::int64_t width, LayerNormConstants k, float* mean,
                float* scale) {
  const float count = static_cast<float>(width);
  for (std::int64_t r = 0; r < rows; ++r, x += width, y += width) {
    RowSum sum, squares;
    over_values(width, [&]<class L>(std::int64_t c) { sum.add(L::get(x + c)); });
    const float centre = sum.total() / count;
    over_values(width, [&]<class L>(std::int64_t c) {
      const typename L::V d = L::get(x + c) - centre;
      squares.add(d * d);
    });
    const float inverse = 1 / std::sqrt(squares.total() / count + k.eps);
    over_values(width, [&]<class L>(std::int64_t c) {
      L::put(y + c, (L::get(x + c) - centre) * inverse * L::get(k.weight + c) + L::get(k.bias + c));
    });
    if (mean == nullptr) continue;
    mean[r] = centre;
    scale[r] = inverse;
  }
}

template <class T>
void layer_norm_gradient(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t width,
                         const float* weight, const float* mean, const float* scale, float* dweight,
                         float* dbias) {
  const float count = static_cast<float>(width);
  for (std::int64_t r = 0; r < rows; ++r, x += width, g += width) {
    const float centre = mean[r], inverse = scale[r];
    RowSum sum, sum_of_products;
    over_values(width, [&]<class L>(std::int64_t c) {
      const typename L::V dy = L::get(g + c), normal = (L::get(x + c) - centre) * inverse;
      L::put(dweight + c, L::get(dweight + c) + dy * normal);
      L::put(dbias + c, L::get(dbias + c) + dy);
      const typename L::V weighted = dy * L::get(weight + c);
      sum.add(weighted);
      sum_of_products.add(weighted * normal);
    });
    if (dx == nullptr) continue;
    const float a = sum.total() / count, b = sum_of_products.total() / count;
    over_values(width, [&]<class L>(std::int64_t c) {
      const typename L::V normal = (L::get(x + c) - centre) * inverse;
      L::put(dx + c, (L::get(g + c) * L::get(weight + c) - a - normal * b) * inverse);
    });
    dx += width;
  }
}

inline float softmax_weights(float* scores, std::int64_t n, float scale) {
  const auto greater = [](auto a, auto b) { return maths::choose_less(b, a, a, b); };
  float max = scores[0];
  Vector maxima = max;
  over_values(n, [&]<class L>(std::int64_t i) {
    if constexpr (L::n == 1)
      max = greater(L::get(scores + i), max);
    else
      maxima = greater(L::get(scores + i), maxima);
  });
  for (std::int64_t i = 0; i < lanes; ++i) max = greater(maxima[i], max);
  RowSum sum;
  over_values(n, [&]<class L>(std::int64_t i) {
    const typename L::V e = maths::exp<typename L::Maths>((L::get(scores + i) - max) * scale);
    L::put(scores + i, e);
    sum.add(e);
  });
  const float total = sum.total(), inverse = 1 / total;
  over_values(n, [&]<class L>(std::int64_t i) { L::put(scores + i, L::get(scores + i) * inverse); });
  return max * scale + std::log(total);
}

inline void softmax_weights_again(float* scores, std::int64_t n, float scale, float log_sum) {
  over_values(n, [&]<class L>(std::int64_t i) {
    L::put(scores + i, maths::exp<typename L::Maths>(L::get(scores + i) * scale - log_sum));
  });
}

inline void softmax_weights_gradient(const float* weights, float* gradient, std::int64_t n, float scale) {
  RowSum sum;
  over_values(n, [&]<class L>(std::int64_t i) { sum.add(L::get(weights + i) * L::get(gradient + i)); });
  const float mean = sum.total();
  over_values(n, [&]<class L>(std::int64_t i) {
    L::put(gradient + i, L::get(weights + i) * (L::get(gradient + i) - mean) * scale);
  });
}

inline void dropout_factors(const DropoutDraws& d, std::uint32_t block, std::uint32_t position,
                            std::uint32_t step, std::int64_t n, float* factors) {
  constexpr int sets = 4;
  constexpr std::int64_t at_once = 4 * sets * philox_lanes, of_draws = 2 * philox_lanes;
  for (std::int64_t i = 0; i < n; i += at_once, block += sets * philox_lanes) {
    float beside[at_once];
    float* const to = n - i < at_once ? beside : factors + i;
    philox_draws<sets>(block, position, step, d.layer, d.seed, static_cast<std::uint32_t>(RandomUse::dropout),
                       [&](int v, PhiloxLanes draws) {
                         const Words words = reinterpret_cast<Words>(draws);
                         store_part(to + v * of_draws,
                                    words >= d.limit ? Vector::Part{} + d.scale : Vector::Part{});
                       });
    if (to == beside) std::copy_n(beside, n - i, factors + i);
  }
}

}  // namespace
}  // namespace lpsgd::cpu
