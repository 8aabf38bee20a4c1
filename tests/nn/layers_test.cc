// Every layer against an obvious reference (forward) and central differences (backward).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/error.h"
#include "core/philox.h"
#include "nn/graph.h"
#include "nn/network.h"

namespace lpsgd {
namespace {

/// A small network on random data. `layers` end in `classes` features.
struct Fixture {
  Fixture(const std::string& text, std::int64_t n, std::uint32_t seed = 5, int threads = 1)
      : spec(config::parse_text(text, "net.yaml")),
        network(spec, {.batch = n, .seed = seed, .threads = threads}),
        batch(n) {
    std::size_t sample = 1;
    for (const std::int64_t d : spec.input_shape()) sample *= static_cast<std::size_t>(d);
    PhiloxSequence draw(seed, RandomUse::dataset, 1);
    inputs.resize(sample * static_cast<std::size_t>(n));
    for (float& x : inputs) x = 2 * draw.uniform() - 1;
    const Shape scores = spec.layers().back().shape;
    frames = scores.size() == 2 ? scores[0] : 1;
    for (std::int64_t i = 0; i < n * frames; ++i)
      labels.push_back(static_cast<std::int32_t>(draw.below(static_cast<std::uint32_t>(spec.classes()))));
    for (float& w : network.parameters())
      if (w != 0) w += 0.1f * (draw.uniform() - 0.5f);  // norm weights away from 1
  }
  double loss() {
    network.forward_train({inputs, labels, lengths}, 0);
    const BatchMetrics m = network.take_metrics();
    return m.loss / static_cast<double>(m.samples);
  }

  NetworkSpec spec;
  Network network;
  std::int64_t batch, frames = 1;
  std::vector<float> inputs;
  std::vector<std::int32_t> labels, lengths;
};

/// Compares backward with central differences, in the direction of the gradient of each tensor (so that
/// float32's noise is small beside the change) and along a few single elements. `scale` shortens the steps.
void check_gradients(const std::string& text, std::int64_t batch = 3, double scale = 1,
                     const std::vector<std::int32_t>& lengths = {}) {
  SCOPED_TRACE(text);
  Fixture f(text, batch);
  f.lengths = lengths;
  f.loss();
  std::vector<std::size_t> announced;
  f.network.backward([&](std::size_t t) { announced.push_back(t); });
  EXPECT_EQ(announced, f.network.announce_order());
  const std::vector<float> gradients(f.network.gradients().begin(), f.network.gradients().end());
  const std::vector<float> weights(f.network.parameters().begin(), f.network.parameters().end());
  for (const TensorInfo& t : f.network.tensors()) {
    const std::size_t begin = static_cast<std::size_t>(t.offset),
                      count = static_cast<std::size_t>(t.elements);
    const auto slope = [&](const std::function<double(std::size_t)>& direction, double step) {
      double value[2];
      for (int side = 0; side < 2; ++side) {
        for (std::size_t i = 0; i < count; ++i)
          f.network.parameters()[begin + i] = static_cast<float>(static_cast<double>(weights[begin + i]) +
                                                                 (side ? step : -step) * direction(i));
        value[side] = f.loss();
      }
      for (std::size_t i = 0; i < count; ++i) f.network.parameters()[begin + i] = weights[begin + i];
      return (value[1] - value[0]) / (2 * step);
    };
    double norm = 0;
    for (std::size_t i = 0; i < count; ++i) norm += std::pow(static_cast<double>(gradients[begin + i]), 2);
    norm = std::sqrt(norm);
    if (norm > 1e-6) {  // a bias before batch norm has no gradient
      const double along = slope(
          [&](std::size_t i) { return static_cast<double>(gradients[begin + i]) / norm; }, scale * 5e-3);
      EXPECT_NEAR(along, norm, 2e-3 * norm + 2e-4) << t.name;
    }
    for (std::size_t probe = 0; probe < count; probe += count / 5 + 1)
      EXPECT_NEAR(slope([&](std::size_t i) { return i == probe ? 1.0 : 0.0; }, scale * 1e-2),
                  static_cast<double>(gradients[begin + probe]), 2e-3 * norm + 5e-4)
          << t.name << " element " << probe;
  }
}

std::string network(const std::string& input, const std::string& layers) {
  return "input: " + input +
         "\nclasses: 3\nlayers:\n  - {conv: first, filters: 4, kernel: 1}\n  - {tanh: smooth}\n" + layers +
         "  - flatten\n  - {dense: fc, units: 3}\n";
}

TEST(Gradients, Convolution) {
  check_gradients(network("[5, 6, 3]", "  - {conv: c, filters: 6, kernel: 3, pad: 1}\n"));
  check_gradients(
      network("[7, 6, 3]", "  - {conv: c, filters: 6, kernel: [3, 2], stride: [2, 1], pad: [1, 0]}\n"));
  check_gradients(
      network("[6, 6, 2]", "  - {conv: c, filters: 6, kernel: 3, stride: 2, groups: 2, bias: false}\n"));
  check_gradients(network("[8, 8, 2]", "  - {conv: c, filters: 4, kernel: 3, stride: 4}\n"));
}

TEST(Gradients, BatchNorm) {
  check_gradients(network("[4, 5, 3]", "  - {batch_norm: b}\n"), 4);
  check_gradients(network("[4, 4, 3]", "  - {batch_norm: b}\n  - {tanh: t}\n"), 4);
  check_gradients(network("[3, 3, 3]", "  - {batch_norm: b, eps: 0.5}\n  - {add: s, input: [b, smooth]}\n"),
                  4);
  check_gradients(
      "input: [6]\nclasses: 3\nlayers: [{dense: d, units: 5}, batch_norm, tanh, {dense: fc, units: 3}]", 8);
}

TEST(Gradients, Pooling) {
  check_gradients(network("[6, 6, 3]", "  - {average_pool: p, kernel: 3, stride: 2, pad: 1}\n"));
  check_gradients(
      network("[6, 7, 3]",
              "  - {average_pool: p, kernel: 3, stride: 2, pad: 1, ceil_mode: true, count_pad: false}\n"));
  check_gradients(network("[6, 6, 3]", "  - average_pool\n"));
  // Short steps, in which no window's largest value changes place.
  check_gradients(network("[6, 6, 3]", "  - {max_pool: p, kernel: 2}\n"), 3, 0.05);
  check_gradients(network("[6, 7, 3]", "  - {max_pool: p, kernel: 3, stride: 2, pad: 1, ceil_mode: true}\n"),
                  3, 0.05);
}

TEST(Gradients, LocalResponseNormalisation) {
  // Windows wider than the channels, even windows, exponents with and without a shortcut.
  for (const std::string options : {"alpha: 0.5", "size: 4, alpha: 2, beta: 0.75",
                                    "size: 9, alpha: 3, beta: 1.5", "size: 1, alpha: 1, k: 2"})
    check_gradients(
        network("[4, 3, 3]", "  - {conv: c, filters: 7, kernel: 1}\n  - {lrn: l, " + options + "}\n"));
  check_gradients(network("[3, 3, 3]", "  - {conv: c, filters: 37, kernel: 1}\n  - {lrn: l, alpha: 4}\n"));
}

TEST(Gradients, Dropout) {
  check_gradients(network("[4, 3, 3]", "  - {dropout: d, probability: 0.3}\n"));
  check_gradients(network("[4, 3, 3]", "  - {dropout: d}\n  - {add: s, input: [d, d, smooth]}\n"));
}

TEST(Gradients, Concatenation) {
  check_gradients(
      network("[4, 3, 3]",
              "  - {conv: a, filters: 5, kernel: 1}\n  - {conv: b, input: smooth, filters: 2, kernel: "
              "1}\n  - {concat: c, input: [a, smooth, b]}\n  - {conv: d, filters: 3, kernel: 1}\n"
              "  - {concat: e, input: [c, d, c]}\n"));
  check_gradients(
      "input: [7]\nclasses: 3\nlayers: [{dense: a, units: 5}, tanh, {concat: c, input: [tanh, in]}, {dense: "
      "b, "
      "units: 3}]",
      5);
}

TEST(Gradients, DenseOnEachFrame) {
  check_gradients("input: [5, 4]\nclasses: 3\nlayers: [{dense: a, units: 5}, sigmoid, {dense: b, units: 3}]",
                  4);
}

TEST(Gradients, Lstm) {
  const auto text = [](const std::string& layers, int frames) {
    return "input: [" + std::to_string(frames) + ", 4]\nclasses: 3\nlayers: [" + layers +
           ", {dense: fc, units: 3}]";
  };
  check_gradients(text("{lstm: a, cell: 5}", 4), 3);
  check_gradients(text("{lstm: a, cell: 5, projection: 3}, {lstm: b, cell: 18}", 4), 3);
  check_gradients(text("{lstm: a, cell: 3, bias: false}", 1), 3);
  check_gradients(text("{lstm: a, cell: 6, projection: 2, bias: false}, {lstm: b, cell: 5}", 5), 4, 1,
                  {2, 5, 1, 4});
}

/// What lies behind a sequence's end, in inputs and labels, changes nothing; short rows are as if alone.
TEST(Forward, SequencesEndAtTheirLengths) {
  const std::string text =
      "input: [6, 4]\nclasses: 3\nlayers: [{lstm: a, cell: 7, projection: 5}, {lstm: b, cell: 6}, {dense: "
      "fc, units: 3}]";
  Fixture f(text, 2);
  f.lengths = {3, 6};
  const double loss = f.loss();
  f.network.backward({});
  const std::vector<float> gradients(f.network.gradients().begin(), f.network.gradients().end());
  for (std::size_t i = 3 * 4; i < 6 * 4; ++i) f.inputs[i] = std::nanf("");
  for (std::size_t i = 3; i < 6; ++i) f.labels[i] = 99;
  EXPECT_EQ(f.loss(), loss);
  f.network.backward({});
  EXPECT_TRUE(std::equal(gradients.begin(), gradients.end(), f.network.gradients().begin()));

  Fixture alone(
      "input: [3, 4]\nclasses: 3\nlayers: [{lstm: a, cell: 7, projection: 5}, {lstm: b, cell: 6}, {dense: "
      "fc, units: 3}]",
      1);
  std::copy(f.network.parameters().begin(), f.network.parameters().end(), alone.network.parameters().begin());
  std::copy_n(f.inputs.begin(), 12, alone.inputs.begin());
  alone.loss();
  for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(alone.network.logits()[i], f.network.logits()[i], 1e-6);
  f.lengths = {0, 6};
  EXPECT_THROW(f.loss(), std::exception);
}

TEST(Gradients, Embedding) {
  const std::string text =
      "input: [5]\nclasses: 3\nlayers: [{embedding: e, vocabulary: 6, dimension: 7}, {lstm: l, cell: 4}, "
      "{dense: fc, "
      "units: 3}]";
  Fixture f(text, 2);
  for (std::size_t i = 0; i < f.inputs.size(); ++i)
    f.inputs[i] = static_cast<float>(i * i % 5);  // 5 is not used
  f.lengths = {5, 3};
  f.loss();
  f.network.backward({});
  const std::vector<float> gradients(f.network.gradients().begin(), f.network.gradients().end());
  for (std::size_t i = 0; i < 42; ++i) {
    const float w = f.network.parameters()[i];
    double value[2];
    for (const int side : {0, 1}) {
      f.network.parameters()[i] = w + (side ? 1e-2f : -1e-2f);
      value[side] = f.loss();
    }
    f.network.parameters()[i] = w;
    EXPECT_NEAR((value[1] - value[0]) / 2e-2, static_cast<double>(gradients[i]), 1e-4) << i;
    if (i >= 35) {
      EXPECT_EQ(gradients[i], 0.0f);
    }
  }
  f.inputs[3] = 6;
  EXPECT_THROW(f.loss(), Error);
}

TEST(Gradients, SharedTensorsAddUp) {
  check_gradients(network("[4, 4, 3]",
                          "  - {conv: a, filters: 4, kernel: 1}\n  - {conv: b, input: smooth, filters: 4, "
                          "kernel: 1}\n  - {add: s, input: [a, b, smooth]}\n"));
  check_gradients(network("[4, 4, 3]",
                          "  - {average_pool: p, kernel: 2}\n  - {conv: a, filters: 4, kernel: 1}\n"
                          "  - {conv: b, input: p, filters: 4, kernel: 1}\n  - {add: s, input: [a, b]}\n"));
  check_gradients(network("[4, 4, 3]", "  - {add: s, input: [smooth, smooth]}\n"));
  check_gradients(network("[4, 4, 3]",
                          "  - {batch_norm: b}\n  - {conv: a, filters: 4, kernel: 1}\n  - {add: s, input: "
                          "[a, b]}\n"),
                  4);
}

TEST(Gradients, DenseAndActivations) {
  check_gradients("input: [7]\nclasses: 3\nlayers: [{dense: a, units: 5}, sigmoid, {dense: b, units: 3}]", 5);
  check_gradients(
      "input: [7]\nclasses: 3\nlayers: [{dense: a, units: 5, bias: false}, tanh, {dense: b, units: 3}]", 5);
}

/// ReLU has a kink, so instead of differences: a network whose norms, sums and ReLUs are fused agrees with an
/// equal one in which a second reader of each prevents that.
TEST(Gradients, FusedReluEqualsUnfused) {
  const auto text = [](bool fused, const std::string& norm) {
    const std::string twice = fused ? "" : "  - {relu: r0b, input: n0}\n";
    const std::string again = fused ? "" : "  - {relu: r1b, input: s}\n";
    return "input: [6, 6, 3]\nclasses: 3\nlayers:\n  - {conv: first, filters: 16, kernel: 3, pad: 1}\n  - {" +
           norm + ": n0}\n  - {relu: r0}\n" + twice +
           "  - {conv: c1, input: r0, filters: 16, kernel: 3, pad: 1}\n  - {" + norm +
           ": n1}\n  - {add: s, input: [n1, " + (fused ? "r0" : "r0b") + "]}\n  - {relu: r1}\n" + again +
           "  - {add: m, input: [r1, " + (fused ? "r1" : "r1b") +
           "]}\n  - average_pool\n  - flatten\n  - {dense: fc, units: 3}\n";
  };
  for (const std::string norm : {"batch_norm", "tanh"}) {
    Fixture fused(text(true, norm), 4), apart(text(false, norm), 4);
    EXPECT_DOUBLE_EQ(fused.loss(), apart.loss());
    fused.network.backward({});
    apart.network.backward({});
    for (std::size_t i = 0; i < fused.network.gradients().size(); ++i)
      EXPECT_NEAR(fused.network.gradients()[i], apart.network.gradients()[i], 1e-6) << norm << " at " << i;
  }
}

/// Norms that hand their input's gradient over in parts agree with equal ones that a pooling window of one
/// pixel keeps apart from their convolutions. 4 MiB an output, in parts that do not divide it.
TEST(Gradients, JoinedNormsEqualSeparateOnes) {
  const auto text = [](bool joined, bool shortcut) {
    const auto conv = [&](const std::string& name, const std::string& from) {
      return "  - {conv: " + name + ", input: " + from + ", filters: 64, kernel: 1, bias: false}\n" +
             (joined ? "" : "  - {max_pool: p" + name + ", kernel: 1}\n") + "  - {batch_norm: b" + name +
             "}\n";
    };
    return "input: [67, 83, 8]\nclasses: 3\nlayers:\n  - {conv: first, filters: 64, kernel: 3, pad: 1}\n" +
           conv("c", "first") + "  - {relu: r0}\n" + conv("d", "r0") +
           (shortcut ? "  - {add: s, input: [bd, r0]}\n" : "") +
           "  - {relu: r1}\n  - average_pool\n  - flatten\n  - {dense: fc, units: 3}\n";
  };
  for (const bool shortcut : {false, true})
    for (const int threads : {1, 3}) {
      Fixture joined(text(true, shortcut), 3, 5, threads), apart(text(false, shortcut), 3, 5, threads);
      for (int step = 0; step < 2; ++step) {  // the second must not see the first one's sums
        EXPECT_NEAR(joined.loss(), apart.loss(), 1e-6);
        joined.network.backward({});
        apart.network.backward({});
        for (const OperationTime& t : joined.network.take_times()) {
          const bool convolution = t.name == "c" || t.name == "d";
          EXPECT_LT(convolution ? t.backward : 0, 1e-4) << "not joined";
        }
        double size = 0;
        for (const float g : apart.network.gradients())
          size = std::max(size, std::abs(static_cast<double>(g)));
        for (std::size_t i = 0; i < joined.network.gradients().size(); ++i)
          ASSERT_NEAR(joined.network.gradients()[i], apart.network.gradients()[i], 2e-5 * size)
              << "shortcut " << shortcut << ", " << threads << " threads, at " << i;
        joined.network.forward_eval({joined.inputs, joined.labels}, 3);
        joined.network.take_metrics();
      }
      for (std::size_t b = 0; b < apart.network.buffers().size(); ++b)
        for (std::size_t i = 0; i < apart.network.buffers()[b].values.size(); ++i)
          ASSERT_NEAR(joined.network.buffers()[b].values[i], apart.network.buffers()[b].values[i], 1e-5);
    }
}

// ---- forward, from the definitions. Each network is one layer and a flatten, so logits are its output.

struct Window {
  std::int64_t kernel, stride, pad;
};

/// (N, C, H, W) of one layer's output, where value(n, y, x, c, read) computes one number.
void check_forward(
    Fixture& f, bool training,
    const std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& value) {
  if (training)
    f.network.forward_train({f.inputs, f.labels}, 0);
  else
    f.network.forward_eval({f.inputs, f.labels}, f.batch);
  const Shape out = f.spec.layers()[0].shape;
  std::size_t i = 0;
  for (std::int64_t n = 0; n < f.batch; ++n)
    for (std::int64_t c = 0; c < out[2]; ++c)
      for (std::int64_t y = 0; y < out[0]; ++y)
        for (std::int64_t x = 0; x < out[1]; ++x, ++i)
          ASSERT_NEAR(static_cast<double>(f.network.logits()[i]), value(n, y, x, c), 1e-5)
              << "sample " << n << " channel " << c << " row " << y << " column " << x;
}

/// Input value, or `outside` beyond the border.
double read(const Fixture& f, std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c,
            double outside) {
  const Shape& in = f.spec.input_shape();
  if (y < 0 || x < 0 || y >= in[0] || x >= in[1]) return outside;
  return static_cast<double>(f.inputs[static_cast<std::size_t>(((n * in[0] + y) * in[1] + x) * in[2] + c)]);
}

std::string one_layer(const std::string& layer, std::int64_t classes) {
  return "input: [7, 5, 4]\nclasses: " + std::to_string(classes) + "\nlayers:\n  - " + layer +
         "\n  - flatten\n";
}

TEST(Forward, Convolution) {
  const auto check = [](std::int64_t k, std::int64_t s, std::int64_t p, std::int64_t groups,
                        std::int64_t classes) {
    Fixture f(
        one_layer("{conv: c, filters: 6, kernel: " + std::to_string(k) + ", stride: " + std::to_string(s) +
                      ", pad: " + std::to_string(p) + ", groups: " + std::to_string(groups) + "}",
                  classes),
        2);
    const float* w = f.network.parameters().data();
    const float* bias = w + f.network.tensors()[1].offset;
    const std::int64_t inner = 4 / groups;
    check_forward(f, true, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t o) {
      double sum = static_cast<double>(bias[o]);
      for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          for (std::int64_t c = 0; c < inner; ++c)
            sum += static_cast<double>(w[((o * k + i) * k + j) * inner + c]) *
                   read(f, n, y * s - p + i, x * s - p + j, o / (6 / groups) * inner + c, 0);
      return sum;
    });
  };
  check(3, 1, 1, 1, 7 * 5 * 6);
  check(3, 2, 0, 1, 3 * 2 * 6);
  check(2, 3, 1, 2, 3 * 2 * 6);
  check(1, 2, 0, 1, 4 * 3 * 6);
}

TEST(Forward, PoolingWithCeilMode) {
  const auto check = [](bool max, std::int64_t k, std::int64_t s, std::int64_t p, bool count_pad,
                        std::int64_t classes) {
    Fixture f(one_layer(std::string("{") + (max ? "max_pool" : "average_pool") +
                            ": p, kernel: " + std::to_string(k) + ", stride: " + std::to_string(s) +
                            ", pad: " + std::to_string(p) + ", ceil_mode: true" +
                            (max || count_pad ? "" : ", count_pad: false") + "}",
                        classes),
              2);
    check_forward(f, true, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
      double sum = 0, best = -1e30, inside = 0, padded = 0;
      for (std::int64_t i = y * s - p; i < y * s - p + k; ++i) {
        for (std::int64_t j = x * s - p; j < x * s - p + k; ++j) {
          if (i >= -p && j >= -p && i < 7 + p && j < 5 + p) ++padded;
          if (i < 0 || j < 0 || i >= 7 || j >= 5) continue;
          ++inside;
          sum += read(f, n, i, j, c, 0);
          best = std::max(best, read(f, n, i, j, c, 0));
        }
      }
      return max ? best : sum / (count_pad ? padded : inside);
    });
  };
  check(true, 2, 2, 0, true, 4 * 3 * 4);
  check(true, 3, 2, 1, true, 4 * 3 * 4);
  check(false, 3, 2, 1, true, 4 * 3 * 4);
  check(false, 3, 2, 1, false, 4 * 3 * 4);
  check(false, 2, 3, 0, true, 3 * 2 * 4);
}

TEST(Forward, LocalResponseNormalisation) {
  const auto check = [](std::int64_t size, double alpha, double beta, double k) {
    Fixture f(one_layer("{lrn: l, size: " + std::to_string(size) + ", alpha: " + std::to_string(alpha) +
                            ", beta: " + std::to_string(beta) + ", k: " + std::to_string(k) + "}",
                        7 * 5 * 4),
              2);
    check_forward(f, true, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
      double sum = 0;
      for (std::int64_t j = c - size / 2; j <= c + (size - 1) / 2; ++j)
        if (j >= 0 && j < 4) sum += std::pow(read(f, n, y, x, j, 0), 2);
      return read(f, n, y, x, c, 0) * std::pow(k + alpha / static_cast<double>(size) * sum, -beta);
    });
  };
  check(5, 1e-4, 0.75, 1);
  check(2, 3, 0.75, 1);
  check(3, 2, 1.25, 0.5);
  check(9, 2, 0.5, 2);
}

TEST(Forward, SigmoidAndTanhOverTheirRange) {
  for (const bool sigmoid : {true, false}) {
    Fixture f("input: [64]\nclasses: 64\nlayers: [" + std::string(sigmoid ? "sigmoid" : "tanh") + "]", 21);
    for (std::size_t i = 0; i < f.inputs.size(); ++i) {
      const double size =
          std::pow(10.0, -8 + 11 * static_cast<double>(i) / static_cast<double>(f.inputs.size()));
      f.inputs[i] = static_cast<float>(i % 2 ? -size : size);
    }
    f.network.forward_train({f.inputs, f.labels}, 0);
    for (std::size_t i = 0; i < f.inputs.size(); ++i) {
      const double x = static_cast<double>(f.inputs[i]), y = static_cast<double>(f.network.logits()[i]);
      const double truth = sigmoid ? 1 / (1 + std::exp(-x)) : std::tanh(x);
      EXPECT_NEAR(y, truth, 4e-7 * std::abs(truth) + 1e-37) << x;
    }
    f.inputs[0] = std::nanf("");
    f.network.forward_train({f.inputs, f.labels}, 0);
    EXPECT_TRUE(std::isnan(f.network.logits()[0]));
  }
}

/// The mask: by chance, another in every step and layer, scaled, off in evaluation, and of no rank's making.
TEST(Forward, DropoutDependsOnThePlaceInTheGlobalBatch) {
  const std::string text =
      "input: [50]\nclasses: 50\nlayers: [{dropout: a, probability: 0.2}, {dropout: b, probability: 0.2}]";
  const NetworkSpec spec(config::parse_text(text, "net.yaml"));
  const auto run = [&](std::int64_t first, std::int64_t batch, std::int64_t step, std::uint32_t seed) {
    Network network(spec, {.batch = batch, .first = first, .seed = seed});
    const std::vector<float> ones(static_cast<std::size_t>(batch * 50), 1.0f);
    const std::vector<std::int32_t> labels(static_cast<std::size_t>(batch), 0);
    network.forward_eval({ones, labels}, batch);
    EXPECT_EQ(std::vector<float>(network.logits().begin(), network.logits().end()), ones);
    network.forward_train({ones, labels}, step);
    return std::vector<float>(network.logits().begin(), network.logits().end());
  };
  const std::vector<float> whole = run(0, 40, 3, 1);
  std::vector<float> parts;
  for (std::int64_t rank = 0; rank < 4; ++rank)
    for (const float x : run(10 * rank, 10, 3, 1)) parts.push_back(x);
  EXPECT_EQ(whole, parts);
  EXPECT_NE(whole, run(0, 40, 4, 1));
  EXPECT_NE(whole, run(0, 40, 3, 2));
  std::int64_t kept = 0;
  for (const float x : whole) {
    EXPECT_TRUE(x == 0.0f || std::abs(x - 1 / 0.64f) < 1e-6f) << x;
    kept += x != 0.0f;
  }
  EXPECT_NEAR(static_cast<double>(kept) / 2000, 0.64, 0.03);  // two layers with one mask would keep 0.8
}

TEST(Forward, BatchNormStatistics) {
  for (const float offset : {0.0f, 1000.0f}) {  // a mean far from zero
    Fixture f(one_layer("{batch_norm: b}", 7 * 5 * 4), 3);
    for (float& x : f.inputs) x += offset;
    const double count = 3 * 7 * 5;
    std::vector<double> mean(4, 0), variance(4, 0);
    for (std::size_t i = 0; i < f.inputs.size(); ++i) mean[i % 4] += static_cast<double>(f.inputs[i]) / count;
    for (std::size_t i = 0; i < f.inputs.size(); ++i)
      variance[i % 4] += std::pow(static_cast<double>(f.inputs[i]) - mean[i % 4], 2) / count;
    const auto output = [&](const std::vector<double>& m, const std::vector<double>& v) {
      return [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
        const std::size_t i = static_cast<std::size_t>(c);
        const double weight = static_cast<double>(f.network.parameters()[i]);
        return (read(f, n, y, x, c, 0) - m[i]) / std::sqrt(v[i] + 1e-5) * weight;
      };
    };
    if (offset == 0.0f)
      check_forward(f, true, output(mean, variance));
    else
      f.network.forward_train({f.inputs, f.labels}, 0);
    const std::vector<NamedBuffer> buffers = f.network.buffers();
    ASSERT_EQ(buffers.size(), 2u);
    EXPECT_EQ(buffers[0].name, "b.running_mean");
    EXPECT_EQ(buffers[1].name, "b.running_var");
    std::vector<double> running_mean, running_variance;
    for (std::size_t c = 0; c < 4; ++c) {
      EXPECT_NEAR(static_cast<double>(buffers[0].values[c]), 0.1 * mean[c],
                  1e-5 * (1 + static_cast<double>(offset)));
      EXPECT_NEAR(static_cast<double>(buffers[1].values[c]), 0.9 + 0.1 * variance[c] * count / (count - 1),
                  1e-5);
      running_mean.push_back(static_cast<double>(buffers[0].values[c]));
      running_variance.push_back(static_cast<double>(buffers[1].values[c]));
    }
    if (offset == 0.0f) check_forward(f, false, output(running_mean, running_variance));
  }
}

}  // namespace
}  // namespace lpsgd
