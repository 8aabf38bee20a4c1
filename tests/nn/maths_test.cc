// The arithmetic that kernels of both devices share, one value at a time, against double precision.
#include <gtest/gtest.h>

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
  EXPECT_EQ(maths::exp<One>(-200.0f), 0.0f);
  EXPECT_TRUE(std::isnan(maths::exp<One>(std::nanf(""))));
  EXPECT_TRUE(std::isnan(maths::relu(std::nanf(""))));
  EXPECT_TRUE(std::isnan(maths::where_positive(1.0f, std::nanf(""))));
  EXPECT_EQ(maths::where_positive(0.0f, 5.0f), 0.0f);
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
