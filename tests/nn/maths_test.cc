// The arithmetic that kernels of both devices share, one value at a time, against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/maths_device.h"

namespace lpsgd {
namespace {

using maths::One;

TEST(Maths, ExponentialSigmoidAndTanh) {
  for (double x = -86; x < 87; x += 0.0137) {
    const auto f = static_cast<float>(x);
    const double d = static_cast<double>(f);
    EXPECT_NEAR(static_cast<double>(maths::exp<One>(f)), std::exp(d), 2e-7 * std::exp(d)) << f;
    EXPECT_NEAR(static_cast<double>(maths::sigmoid<One>(f)), 1 / (1 + std::exp(-d)),
                4e-7 / (1 + std::exp(-d)))
        << f;
    EXPECT_NEAR(static_cast<double>(maths::tanh<One>(f / 10)), std::tanh(static_cast<double>(f / 10)),
                4e-7 * std::abs(std::tanh(static_cast<double>(f / 10))))
        << f / 10;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(maths::exp<One>(-200.0f), 0.0f);
  EXPECT_EQ(maths::exp<One>(-infinity), 0.0f);
  EXPECT_EQ(maths::sigmoid<One>(infinity), 1.0f);
  EXPECT_LT(maths::sigmoid<One>(-infinity), 1e-38f);
  EXPECT_EQ(maths::tanh<One>(infinity), 1.0f);
  EXPECT_EQ(maths::tanh<One>(-infinity), -1.0f);
  EXPECT_TRUE(std::isnan(maths::exp<One>(std::nanf(""))));
  EXPECT_TRUE(std::isnan(maths::relu(std::nanf(""))));
  EXPECT_TRUE(std::isnan(maths::where_positive(1.0f, std::nanf(""))));
  EXPECT_EQ(maths::where_positive(0.0f, 5.0f), 0.0f);
}

TEST(Maths, NormalDistribution) {
  for (double x = -13; x < 13; x += 0.00137) {
    const auto f = static_cast<float>(x);
    const auto d = static_cast<double>(f);
    const auto [density, below] = maths::normal_at<One>(f);
    const double truth = std::erfc(-d / std::sqrt(2.0)) / 2;
    // The exponent has an error of half a unit in the last place of x^2 / 2.
    const double relative = 3e-7 + 6e-8 * d * d;
    EXPECT_NEAR(static_cast<double>(below), truth, relative * truth + 1e-37) << f;
    const double bell = std::exp(-d * d / 2) / std::sqrt(2 * std::acos(-1.0));
    EXPECT_NEAR(static_cast<double>(density), bell, relative * bell + 1e-37) << f;
  }
  EXPECT_EQ(maths::normal_at<One>(40.0f).below, 1);
  EXPECT_EQ(maths::normal_at<One>(-40.0f).below, 0);
  EXPECT_TRUE(std::isnan(maths::normal_at<One>(std::nanf("")).below));
}

template <Activation kind>
float gradient_of(float at, float g) {
  return maths::activation_gradient<kind, One>(at, g);
}

/// Against differences, apart from kinks; in version 2 of PyTorch the gradients at hardswish's kinks are 0
/// and 1.
TEST(Maths, GradientsOfActivations) {
  const auto check = [](auto value, auto gradient, bool reads_output, double tolerance) {
    for (double x = -9.98; x < 10; x += 0.0371) {
      if (std::abs(std::abs(x) - 3) < 0.01) continue;
      const auto f = static_cast<float>(x);
      const double h = 1e-3;
      const double slope = (value(x + h) - value(x - h)) / (2 * h);
      const float at = reads_output ? static_cast<float>(value(static_cast<double>(f))) : f;
      EXPECT_NEAR(static_cast<double>(gradient(at, 2.0f)), 2 * slope, tolerance) << x;
    }
  };
  const auto hardsigmoid = [](double x) { return std::clamp(x + 3, 0.0, 6.0) / 6; };
  check(hardsigmoid, gradient_of<Activation::hardsigmoid>, true, 1e-6);
  check([&](double x) { return x * hardsigmoid(x); }, gradient_of<Activation::hardswish>, false, 2e-6);
  check([](double x) { return x / (1 + std::exp(-x)); }, gradient_of<Activation::silu>, false, 3e-6);
  check([](double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }, gradient_of<Activation::gelu>, false,
        3e-6);
  for (const float x : {-88.0f, -1e3f, -3e38f}) {
    EXPECT_LE(std::abs(maths::activation<Activation::silu, One>(x)), 1e-35f) << x;
    EXPECT_LE(std::abs(gradient_of<Activation::silu>(x, 1.0f)), 1e-35f) << x;
    EXPECT_LE(std::abs(maths::activation<Activation::gelu, One>(x)), 1e-35f) << x;
    EXPECT_LE(std::abs(gradient_of<Activation::gelu>(x, 1.0f)), 1e-35f) << x;
  }
  const auto hardswish = gradient_of<Activation::hardswish>;
  EXPECT_EQ(hardswish(-3.0f, 5.0f), 0);
  EXPECT_EQ(hardswish(3.0f, 5.0f), 5);
}

struct DoubleCell {
  double i, f, g, o;
  /// (new cell, output).
  std::pair<double, double> operator()(double before) const {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    const double c = sigmoid(i) * std::tanh(g) + sigmoid(f) * before;
    return {c, sigmoid(o) * std::tanh(c)};
  }
};

TEST(Maths, LstmCell) {
  const DoubleCell sums{0.3, -0.7, 1.1, 0.2};
  const double before = -0.4, dy = 0.8, dc = 0.25;
  maths::LstmCell<One> cell{0.3f, -0.7f, 1.1f, 0.2f};
  cell.forward(-0.4f);
  EXPECT_NEAR(cell.cell, sums(before).first, 1e-6);
  EXPECT_NEAR(cell.output, sums(before).second, 1e-6);
  float dc_before = 0.25f;
  cell.backward(-0.4f, 0.8f, dc_before);
  // What the loss dy * output + dc * cell changes by.
  const auto slope = [&](auto change) {
    const auto loss = [&](double step) {
      DoubleCell moved = sums;
      double b = before;
      change(moved, b, step);
      const auto [c, y] = moved(b);
      return dy * y + dc * c;
    };
    return (loss(1e-5) - loss(-1e-5)) / 2e-5;
  };
  EXPECT_NEAR(cell.i, slope([](DoubleCell& s, double&, double d) { s.i += d; }), 1e-6);
  EXPECT_NEAR(cell.f, slope([](DoubleCell& s, double&, double d) { s.f += d; }), 1e-6);
  EXPECT_NEAR(cell.g, slope([](DoubleCell& s, double&, double d) { s.g += d; }), 1e-6);
  EXPECT_NEAR(cell.o, slope([](DoubleCell& s, double&, double d) { s.o += d; }), 1e-6);
  EXPECT_NEAR(dc_before, slope([](DoubleCell&, double& b, double d) { b += d; }), 1e-6);
}

TEST(Maths, Sgd) {
  float w = 1.5f, v = 0.25f;
  maths::sgd(w, 2.0f, v, {0.1f, 0.9f}, 0.01f, 0.5f, false);
  const double d = 2 * 0.5 + 1.5 * 0.01, momentum = 0.25 * 0.9 + d;
  EXPECT_NEAR(v, momentum, 1e-6);
  EXPECT_NEAR(w, 1.5 - 0.1 * momentum, 1e-6);
  w = 1.5f, v = 0.25f;
  maths::sgd(w, 2.0f, v, {0.1f, 0.9f}, 0.01f, 0.5f, true);
  EXPECT_NEAR(w, 1.5 - 0.1 * (d + 0.9 * momentum), 1e-6);
  w = 1.5f, v = 0.25f;
  maths::sgd(w, 2.0f, v, {0.1f, 0.9f, 0.1f}, 0.01f, 0.5f, true);
  EXPECT_NEAR(v, 0.25 * 0.9 + 0.1 * d, 1e-6);
  EXPECT_NEAR(w, 1.5 - 0.1 * (0.1 * d + 0.9 * (0.25 * 0.9 + 0.1 * d)), 1e-6);
}

}  // namespace
}  // namespace lpsgd
