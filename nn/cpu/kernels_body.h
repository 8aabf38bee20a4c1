// Defines the kernels for one instruction set. Included once for each, with LPSGD_KERNELS set to the name of
// the table.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "nn/cpu/kernels.h"
#include "nn/cpu/kernels_lanes.h"
#include "nn/cpu/kernels_lrn.h"
#include "nn/cpu/kernels_norm.h"
#include "nn/cpu/kernels_rows.h"

#ifndef LPSGD_KERNELS
#error "define LPSGD_KERNELS"
#endif

#define LPSGD_TEXT2(x) #x
#define LPSGD_TEXT(x) LPSGD_TEXT2(x)

namespace lpsgd::cpu {
namespace {

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

template <class T>
void drop(const float* factors, const T* const* terms, int count, T* out, std::int64_t n) {
  each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) {
    const typename L::V factor = L::get(factors + i), none = 0.0f;
    L::put(out + i, maths::choose_less(none, factor, v * factor, none));
  });
}

template <class T>
void scaled_sum(const T* const* terms, int count, float factor, T* out, std::int64_t n) {
  each_sum(terms, count, n, [&]<class L>(std::int64_t i, typename L::V v) { L::put(out + i, v * factor); });
}

inline void put_halves(std::uint16_t* p, Integers v) {
  for (std::size_t i = 0; i < part_count; ++i)
    *reinterpret_cast<Halves*>(p + i * per_part) = low_halves(reinterpret_cast<Words>(v.at[i]));
}
inline void put_halves(std::uint16_t* p, std::int32_t v) {
  *p = static_cast<std::uint16_t>(v);
}

template <class T>
void window_max(const T* x, const std::int64_t* offsets, std::int64_t count, std::int64_t channels, T* out,
                std::uint16_t* argmax) {
  over_values(channels, [&]<class L>(std::int64_t c) {
    typename L::V best = L::get(x + offsets[0] + c);
    typename L::V where{};  // the bits of integers
    for (std::int32_t i = 1; i < count; ++i) {
      const typename L::V v = L::get(x + offsets[i] + c), number = L::Maths::from_bits(L::all(i));
      // The old one stays where v is not greater, and where it is a NaN.
      where =
          maths::choose_less_or_equal(v, best, where, maths::choose_less_or_equal(best, best, number, where));
      best = maths::choose_less_or_equal(v, best, best, maths::choose_less_or_equal(best, best, v, best));
    }
    L::put(out + c, best);
    if (argmax) put_halves(argmax + c, L::bits(where));
  });
}

template <Activation kind, class T>
void activation(const T* x, T* y, std::int64_t n) {
  over_values(n, [&]<class L>(std::int64_t i) {
    L::put(y + i, maths::activation<kind, typename L::Maths>(L::get(x + i)));
  });
}

template <Activation kind, class T>
void activation_gradient(const T* const* gradients, int count, const T* at, T* dx, std::int64_t n) {
  each_sum(gradients, count, n, [&]<class L>(std::int64_t i, typename L::V g) {
    L::put(dx + i, maths::activation_gradient<kind, typename L::Maths>(L::get(at + i), g));
  });
}

/// The kernels of every kind, in the order of Activation.
template <class T, std::size_t... kinds>
constexpr auto activation_table(std::index_sequence<kinds...>) {
  return std::array{activation<static_cast<Activation>(kinds), T>...};
}
template <class T, std::size_t... kinds>
constexpr auto activation_gradient_table(std::index_sequence<kinds...>) {
  return std::array{activation_gradient<static_cast<Activation>(kinds), T>...};
}

template <class T>
void multiply(const T* x, const T* factor, T* out, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, x += width, out += width)
    over_values(width, [&]<class L>(std::int64_t c) { L::put(out + c, L::get(x + c) * L::get(factor + c)); });
}

template <class T>
void add_products(const T* x, const T* y, std::int64_t rows, std::int64_t width, float* sum) {
  for (std::int64_t r = 0; r < rows; ++r, x += width, y += width)
    over_values(width, [&]<class L>(std::int64_t c) {
      L::put(sum + c, L::get(sum + c) + L::get(x + c) * L::get(y + c));
    });
}

typedef float Eight __attribute__((vector_size(32), may_alias));
typedef double Doubles __attribute__((vector_size(64)));

/// Sums in double and counts, in lanes.
struct SoftmaxSums {
  Doubles sum{};
  Integers count{};
  std::int64_t narrow_count = 0;
  void add(Vector v, Integers counts) {  // 1 in a lane that counts
    alignas(sizeof(Eight)) float values[lanes];
    store(values, v);
    for (int half = 0; half < 2; ++half)
      sum += __builtin_convertvector(*reinterpret_cast<const Eight*>(values + 8 * half), Doubles);
    count += counts;
  }
  void add(float v, std::int32_t counts) {
    sum[0] += static_cast<double>(v);
    narrow_count += counts;
  }
};

template <class T>
SoftmaxRow softmax_row(const T* scores, std::int64_t classes, std::int64_t label) {
  const float at_label = lpsgd::widen(scores[label]);
  float max = at_label;
  Vector maxima = max;
  const auto greater = [](auto a, auto b) { return maths::choose_less(b, a, a, b); };
  over_values(classes, [&]<class L>(std::int64_t i) {
    if constexpr (L::n == 1)
      max = greater(L::get(scores + i), max);
    else
      maxima = greater(L::get(scores + i), maxima);
  });
  for (std::int64_t i = 0; i < lanes; ++i) max = greater(maxima[i], max);

  SoftmaxSums sums;
  over_values(classes, [&]<class L>(std::int64_t i) {
    const typename L::V z = L::get(scores + i);
    const typename L::V one = L::Maths::from_bits(L::all(1)), none = 0, score = at_label;
    const typename L::V ranks_before = i + L::n <= label ? maths::choose_less_or_equal(score, z, one, none)
                                                         : maths::choose_less(score, z, one, none);
    sums.add(maths::exp<typename L::Maths>(z - max), L::bits(ranks_before));
  });
  SoftmaxRow row{max, 0, sums.narrow_count};
  for (std::int64_t i = 0; i < 8; ++i) row.sum += sums.sum[i];
  for (std::int64_t i = 0; i < lanes; ++i) row.rank += sums.count[i];
  // In the vector that holds the label, an equal score at a lower index has not been counted.
  const std::int64_t own = label / lanes * lanes;
  if (own + lanes <= classes)
    for (std::int64_t i = own; i < label; ++i) row.rank += lpsgd::widen(scores[i]) == at_label;
  return row;
}

template <class T>
void softmax(const T* scores, float max, float scale, float shift, T* out, std::int64_t classes) {
  over_values(classes, [&]<class L>(std::int64_t i) {
    L::put(out + i, maths::exp<typename L::Maths>(L::get(scores + i) - max) * scale - shift);
  });
}

template <class T>
void add_rows(const T* x, std::int64_t rows, std::int64_t stride, std::int64_t width, float* sum) {
  for (std::int64_t r = 0; r < rows; ++r)
    over_values(width, [&]<class L>(std::int64_t c) {
      L::put(sum + c, L::get(sum + c) + L::get(x + r * stride + c));
    });
}

template <class T>
void lstm_cell(float* gates, const float* before, float* c, T* output, std::int64_t cells) {
  over_values(cells, [&]<class L>(std::int64_t j) {
    maths::LstmCell<typename L::Maths> cell{L::get(gates + j), L::get(gates + cells + j),
                                            L::get(gates + 2 * cells + j), L::get(gates + 3 * cells + j)};
    cell.forward(L::get(before + j));
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
    cell.backward(L::get(before + j), L::get(output_gradient + j), change);
    L::put(sums_gradient + j, cell.i);
    L::put(sums_gradient + cells + j, cell.f);
    L::put(sums_gradient + 2 * cells + j, cell.g);
    L::put(sums_gradient + 3 * cells + j, cell.o);
    L::put(dc + j, change);
  });
}

void sgd(float* w, const float* g, float* v, std::int64_t n, maths::SgdRates rates, float decay,
         float g_scale, bool nesterov) {
  over_values(n, [&]<class L>(std::int64_t i) {
    alignas(sizeof(typename L::V)) typename L::V weight = L::get(w + i);
    alignas(sizeof(typename L::V)) typename L::V momentum = L::get(v + i);
    maths::sgd(weight, L::get(g + i), momentum, rates, decay, g_scale, nesterov);
    L::put(v + i, momentum);
    L::put(w + i, weight);
  });
}

void adam(float* w, const float* g, float* m, float* v, std::int64_t n, maths::AdamRates rates, float decay,
          float shrink, float g_scale) {
  over_values(n, [&]<class L>(std::int64_t i) {
    alignas(sizeof(typename L::V)) typename L::V weight = L::get(w + i);
    alignas(sizeof(typename L::V)) typename L::V first = L::get(m + i);
    alignas(sizeof(typename L::V)) typename L::V second = L::get(v + i);
    maths::adam<typename L::Maths>(weight, L::get(g + i), first, second, rates, decay, shrink, g_scale);
    L::put(m + i, first);
    L::put(v + i, second);
    L::put(w + i, weight);
  });
}

template <class T>
constexpr ActivationKernels<T> activation_kernels{
    widen<T>,
    narrow<T>,
    row_moments<T>,
    normalize<T>,
    norm_gradient_sums<T>,
    norm_gradient<T>,
    group_norm_gradient<T>,
    sum<T>,
    add_rows<T>,
    masked_sum<T>,
    scaled_sum<T>,
    drop<T>,
    window_max<T>,
    activation_table<T>(std::make_index_sequence<activation_kinds>()),
    activation_gradient_table<T>(std::make_index_sequence<activation_kinds>()),
    multiply<T>,
    add_products<T>,
    layer_norm<T>,
    layer_norm_gradient<T>,
    lstm_cell<T>,
    lstm_cell_gradient<T>,
    lrn<T>,
    lrn_gradient<T>,
    softmax_row<T>,
    softmax<T>};

}  // namespace

extern const Kernels LPSGD_KERNELS;
const Kernels LPSGD_KERNELS{LPSGD_TEXT(LPSGD_KERNELS),
                            activation_kernels<float>,
                            activation_kernels<Bf16>,
                            softmax_weights,
                            softmax_weights_again,
                            softmax_weights_gradient,
                            dropout_factors,
                            sgd,
                            adam};

}  // namespace lpsgd::cpu
