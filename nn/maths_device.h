// The arithmetic of layers on one value, for host and device. It is written once, so that both backends
// compute the same. Larger functions are templates over a type L with float lanes L::V, so that the CPU's
// kernels run them on vectors. L::from_bits and L::to_integers convert between float lanes and int32 lanes.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"
#include "core/philox.h"
#include "nn/activation.h"

namespace lpsgd::maths {

/// One lane: a thread of a GPU, or the remainder of a loop on the CPU.
struct One {
  using V = float;
  LPSGD_HD static V from_bits(std::int32_t bits) { return __builtin_bit_cast(float, bits); }
  LPSGD_HD static std::int32_t to_integers(V v) { return static_cast<std::int32_t>(v); }
  LPSGD_HD static V sqrt(V v) { return ::sqrtf(v); }
};

/// x < y ? yes : no in each lane. Specialised for vectors.
template <class V>
LPSGD_HD V choose_less(V x, V y, V yes, V no) {
  return x < y ? yes : no;
}
/// x <= y ? yes : no, likewise.
template <class V>
LPSGD_HD V choose_less_or_equal(V x, V y, V yes, V no) {
  return x <= y ? yes : no;
}

/// A NaN stays a NaN.
template <class V>
LPSGD_HD V relu(V v) {
  return choose_less(v, V{}, V{}, v);
}
/// The gradient before a ReLU whose output is y, from the gradient g behind it. g stays where y is a NaN.
template <class V>
LPSGD_HD V where_positive(V y, V g) {
  return choose_less_or_equal(y, V{}, V{}, g);
}

/// min(max(v, 0), 6). A NaN stays a NaN.
template <class V>
LPSGD_HD V relu6(V v) {
  const V six = V{} + 6.0f;
  return choose_less(v, V{}, V{}, choose_less(six, v, six, v));
}
/// The gradient before it where its output is y, from the gradient g behind it.
template <class V>
LPSGD_HD V where_below_6(V y, V g) {
  return where_positive(y, choose_less_or_equal(V{} + 6.0f, y, V{}, g));
}

/// exp(x) to about one unit in the last place. It is 0 below -87, and above 88 what it is at 88. A NaN stays
/// a NaN.
template <class L>
LPSGD_HD typename L::V exp(typename L::V x) {
  using V = typename L::V;
  constexpr float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float to_even = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V low = V{} - 87.0f, high = V{} + 88.0f;
  const V bounded = choose_less(x, low, low, choose_less(high, x, high, x));
  const V n = (bounded * log2_e + to_even) - to_even;
  const V r =
      (bounded - n * ln2_high) - n * ln2_low;  // within +-ln(2)/2, where few terms of the series suffice
  V p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  const V scaled = p * L::from_bits((L::to_integers(n) + 127) << 23);
  return choose_less(x, low, V{}, scaled);
}

template <class L>
LPSGD_HD typename L::V sigmoid(typename L::V x) {
  return 1.0f / (1.0f + exp<L>(-x));
}

/// 1 - 2 / (exp(2x) + 1). Near 0, where that loses precision, the continued fraction
/// x / (1 + x^2 / (3 + x^2 / (5 + ...))).
template <class L>
LPSGD_HD typename L::V tanh(typename L::V x) {
  using V = typename L::V;
  const V size = choose_less(x, V{}, -x, x);
  const V far = 1.0f - 2.0f / (exp<L>(size + size) + 1.0f);
  const V s = x * x;
  const V near = size / (1.0f + s / (3.0f + s / (5.0f + s / (7.0f + s / (9.0f + s / 11.0f)))));
  const V y = choose_less(size, V{} + 0.75f, near, far);
  return choose_less(x, V{}, -y, y);
}

/// The normal distribution: its density at x, and what lies below x.
template <class V>
struct NormalAt {
  V density, below;
};
/// Both come from one exponential, because below -a lies exp(-a^2/2) times a function that is almost a
/// polynomial in t = 1 / (1 + 0.35 a), for a >= 0. The coefficients have the least relative error, 4e-8.
template <class L>
LPSGD_HD NormalAt<typename L::V> normal_at(typename L::V x) {
  using V = typename L::V;
  const V size = choose_less(x, V{}, -x, x);
  const V e = exp<L>(x * x * -0.5f);
  const V t = 1.0f / (1.0f + size * 0.35f);
  V p = t * -0.0291088867f + 0.143788005f;
  p = p * t - 0.255326822f;
  p = p * t + 0.158721498f;
  p = p * t - 0.0227903953f;
  p = p * t + 0.105369048f;
  p = p * t + 0.119869126f;
  p = p * t + 0.1398567f;
  p = p * t + 0.139621712f;
  const V tail = p * t * e;
  return {e * 0.398942280f, choose_less(x, V{}, tail, 1.0f - tail)};
}

/// sigmoid(x), and 0 where it is smaller than the smallest normal number, so that x times it goes to 0.
template <class L>
LPSGD_HD typename L::V vanishing_sigmoid(typename L::V x) {
  using V = typename L::V;
  return choose_less(x, V{} - 87.0f, V{}, sigmoid<L>(x));
}

/// An activation, of x. Sources: hardsigmoid and hardswish Howard et al. 2019, silu Elfwing et al. 2017, gelu
/// Hendrycks and Gimpel 2016 (x times the normal distribution below x).
template <Activation kind, class L>
LPSGD_HD typename L::V activation(typename L::V x) {
  if constexpr (kind == Activation::relu) return relu(x);
  if constexpr (kind == Activation::sigmoid) return sigmoid<L>(x);
  if constexpr (kind == Activation::tanh) return tanh<L>(x);
  if constexpr (kind == Activation::relu6) return relu6(x);
  if constexpr (kind == Activation::hardsigmoid) return relu6(x + 3.0f) / 6.0f;
  if constexpr (kind == Activation::hardswish) return x * (relu6(x + 3.0f) / 6.0f);
  if constexpr (kind == Activation::silu) return x * vanishing_sigmoid<L>(x);
  if constexpr (kind == Activation::gelu) return x * normal_at<L>(x).below;
}
/// The gradient before it, from the gradient g behind it and from its output, or its input
/// (gradient_reads_output()).
template <Activation kind, class L>
LPSGD_HD typename L::V activation_gradient(typename L::V at, typename L::V g) {
  using V = typename L::V;
  if constexpr (kind == Activation::relu) return where_positive(at, g);
  if constexpr (kind == Activation::sigmoid) return g * (at - at * at);
  if constexpr (kind == Activation::tanh) return g * (1.0f - at * at);
  if constexpr (kind == Activation::relu6) return where_below_6(at, g);
  if constexpr (kind == Activation::hardsigmoid)
    return where_positive(at, choose_less_or_equal(V{} + 1.0f, at, V{}, g / 6.0f));
  if constexpr (kind == Activation::hardswish) {
    const V inside = g * (at / 3.0f + 0.5f);
    return choose_less_or_equal(at, V{} - 3.0f, V{}, choose_less_or_equal(V{} + 3.0f, at, g, inside));
  }
  if constexpr (kind == Activation::silu) {
    const V s = vanishing_sigmoid<L>(at);
    return g * (s + at * (s - s * s));
  }
  if constexpr (kind == Activation::gelu) {
    const NormalAt<V> normal = normal_at<L>(at);
    return g * (normal.below + at * normal.density);
  }
}

/// One cell of an LSTM. i, f, g and o are first the sums of the gates; forward() turns them into the gates.
/// `before` is the state of the cell in the previous step.
template <class L>
struct LstmCell {
  typename L::V i, f, g, o, cell = {}, output = {};

  LPSGD_HD void forward(typename L::V before) {
    i = sigmoid<L>(i);
    f = sigmoid<L>(f);
    g = tanh<L>(g);
    o = sigmoid<L>(o);
    cell = i * g;
    cell += f * before;
    output = o * tanh<L>(cell);
  }

  /// Needs the gates and the cell as forward() left them. `dy` is the gradient of the output, and `dc` that
  /// of the cell from the next step. The gates become the gradients of their sums, and `dc` the gradient of
  /// `before`.
  LPSGD_HD void backward(typename L::V before, typename L::V dy, typename L::V& dc) {
    using V = typename L::V;
    const V y = tanh<L>(cell);
    const V d = dc + dy * o * (1.0f - y * y);
    const V di = d * g * i * (1.0f - i), df = d * before * f * (1.0f - f);
    const V dg = d * i * (1.0f - g * g), d_o = dy * y * o * (1.0f - o);
    dc = d * f;
    i = di;
    f = df;
    g = dg;
    o = d_o;
  }
};

/// What may change from step to step. `gain`, of what is added to the momentum: 1 as in PyTorch, 1 - mu where
/// the momentum has unit gain.
struct SgdRates {
  float lr = 0, mu = 0, gain = 1;
};

/// A step of SGD for one value (nn/optimizer.h): updates the weight and the momentum v. `scale` clips the
/// gradient g.
template <class V>
LPSGD_HD void sgd(V& weight, V g, V& v, SgdRates rates, float decay, float scale, bool nesterov) {
  const auto [lr, mu, gain] = rates;
  const V d = (g * scale + weight * decay) * gain;
  v = v * mu + d;
  weight = weight - (nesterov ? d + v * mu : v) * lr;
}

struct OuterRates {
  float momentum = 0, rate = 1;
  bool nesterov = false;
  float mix = 0;
};

/// A step of OuterStep (nn/outer_step.h) for one value. `mix` is the share of its own weight that a rank
/// keeps.
LPSGD_HD void outer(float& weight, float& synchronised, float& u, float mean, OuterRates rates) {
  u = u * rates.momentum + mean;
  synchronised = synchronised - (rates.nesterov ? mean + u * rates.momentum : u) * rates.rate;
  weight = rates.mix > 0 ? synchronised + (weight - synchronised) * rates.mix : synchronised;
}

/// LARS: by what a tensor's decayed gradient is multiplied, from the norms of its weights and of its gradient
/// before decay.
LPSGD_HD float lars_ratio(double weights, double gradient, double decay, double trust) {
  if (!(weights > 0) || !(gradient > 0)) return 1.0f;
  return static_cast<float>(trust * weights / (gradient + decay * weights));
}

/// `size`: the rate over 1 - beta1^t. `root`: the root of 1 - beta2^t. `shrink`: what AdamW multiplies
/// decayed weights by. `rest1`, `rest2`: 1 - beta, which loses digits if it is taken from a float.
struct AdamRates {
  float size = 0, root = 1, shrink = 1, beta1 = 0, beta2 = 0, eps = 0, rest1 = 1, rest2 = 1;
};

/// A step of Adam for one value (nn/optimizer.h). `decay` is added to the gradient; with AdamW it is 0.
template <class L>
LPSGD_HD void adam(typename L::V& weight, typename L::V g, typename L::V& m, typename L::V& v,
                   AdamRates rates, float decay, float shrink, float scale) {
  using V = typename L::V;
  weight = weight * shrink;
  const V d = g * scale + weight * decay;
  m = m * rates.beta1 + d * rates.rest1;
  v = v * rates.beta2 + d * d * rates.rest2;
  weight = weight - m / (L::sqrt(v) / rates.root + rates.eps) * rates.size;
}

/// Four values of the normal distribution (Box and Muller).
struct Normals {
  float x[4];
};
LPSGD_HD Normals normals(Philox4x32 draw) {
  Normals out;
  for (int pair = 0; pair < 2; ++pair) {
    const float u = static_cast<float>((draw.x[2 * pair] >> 8) + 1) * 0x1p-24f;  // (0, 1]
    const float angle = static_cast<float>(draw.x[2 * pair + 1] >> 8) * (0x1p-24f * 6.28318531f);
    const float r = ::sqrtf(-2.0f * ::logf(u));
    out.x[2 * pair] = r * ::cosf(angle);
    out.x[2 * pair + 1] = r * ::sinf(angle);
  }
  return out;
}
/// The noise of elements 4i..4i+3 of a tensor's gradient.
LPSGD_HD Normals gradient_noise(std::uint32_t i, std::uint32_t tensor, std::uint32_t step, std::uint32_t rank,
                                std::uint32_t seed) {
  return normals(philox4x32(i, tensor, step, rank, seed, static_cast<std::uint32_t>(RandomUse::noise)));
}

/// What an optimizer's step reads beside its arenas.
struct StepRates {
  SgdRates sgd;
  AdamRates adam;
  float noise = 0;                   // standard deviation
  std::uint32_t step = 0, rank = 0;  // the noise's
};

}  // namespace lpsgd::maths
