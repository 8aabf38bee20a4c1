// Forward of every layer against a slow reference written from its definition. Most networks here are one
// layer and a flatten, so that the logits are the layer's output.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "core/philox.h"
#include "tests/nn/layer_fixture.h"

namespace lpsgd {
namespace {

/// (N, C, H, W) of one layer's output, where value(n, y, x, c, read) computes one number.
void check_forward(
    LayerFixture& f, bool training,
    const std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& value) {
  if (training)
    f.network.forward_train({f.inputs, f.labels}, 0);
  else
    f.network.forward_eval({f.inputs, f.labels}, f.batch);
  const std::vector<std::int64_t>& out = f.spec.layers()[0].shape;
  std::size_t i = 0;
  for (std::int64_t n = 0; n < f.batch; ++n)
    for (std::int64_t c = 0; c < out[2]; ++c)
      for (std::int64_t y = 0; y < out[0]; ++y)
        for (std::int64_t x = 0; x < out[1]; ++x, ++i)
          ASSERT_NEAR(static_cast<double>(f.network.logits()[i]), value(n, y, x, c), 1e-5)
              << "sample " << n << " channel " << c << " row " << y << " column " << x;
}

/// Input value, or `outside` beyond the border.
double read(const LayerFixture& f, std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c,
            double outside) {
  const std::vector<std::int64_t>& in = f.spec.input_shape();
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
    LayerFixture f(
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
    LayerFixture f(one_layer(std::string("{") + (max ? "max_pool" : "average_pool") +
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
    LayerFixture f(one_layer("{lrn: l, size: " + std::to_string(size) + ", alpha: " + std::to_string(alpha) +
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

TEST(Forward, Scale) {
  for (const double factor : {0.125, -3.0, 0.0}) {
    LayerFixture f(one_layer("{scale: s, factor: " + std::to_string(factor) + "}", 7 * 5 * 4), 2);
    for (const bool training : {true, false})
      check_forward(f, training, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
        return factor * read(f, n, y, x, c, 0);
      });
  }
}

TEST(Forward, Relu6AndItsGradientAtItsKinks) {
  LayerFixture f("input: [12]\nclasses: 12\nlayers: [{dense: d, units: 12, bias: false}, relu6]", 1);
  const std::vector<float> x = {-100.0f,    -2.0f, -0.0f,      0.0f, 1e-3f, 3.5f,
                                5.9999995f, 6.0f,  6.0000005f, 7.0f, 20.0f, 1.0f};
  const std::span<float> weights = f.network.parameters();  // of the identity
  std::ranges::fill(weights, 0.0f);
  for (std::size_t i = 0; i < 12; ++i) weights[13 * i] = 1;
  std::ranges::copy(x, f.inputs.begin());
  f.network.forward_train({f.inputs, f.labels}, 0);
  f.network.backward({});
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(f.network.logits()[i], std::min(std::max(x[i], 0.0f), 6.0f)) << x[i];
    // Of a weight: the gradient of the score times the input, as d's output is the input.
    const bool passes = x[i] > 0 && x[i] < 6;
    EXPECT_EQ(f.network.gradients()[13 * i] != 0, passes) << x[i];
  }
}

TEST(Forward, Relu6OfInfinitiesAndNan) {
  LayerFixture f("input: [4]\nclasses: 4\nlayers: [relu6]", 1);
  const float infinity = std::numeric_limits<float>::infinity();
  f.inputs = {infinity, -infinity, std::nanf(""), 2};
  f.network.forward_train({f.inputs, f.labels}, 0);
  EXPECT_EQ(f.network.logits()[0], 6);
  EXPECT_EQ(f.network.logits()[1], 0);
  EXPECT_TRUE(std::isnan(f.network.logits()[2]));
  EXPECT_EQ(f.network.logits()[3], 2);
}

TEST(Forward, SigmoidAndTanhOverTheirRange) {
  for (const bool sigmoid : {true, false}) {
    LayerFixture f("input: [64]\nclasses: 64\nlayers: [" + std::string(sigmoid ? "sigmoid" : "tanh") + "]",
                   21);
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

/// Over their range, and at their kinks.
TEST(Forward, ActivationsThatReadTheirInput) {
  const auto hardsigmoid = [](double x) { return std::clamp(x + 3, 0.0, 6.0) / 6; };
  const std::map<std::string, std::function<double(double)>> definitions{
      {"hardsigmoid", hardsigmoid},
      {"hardswish", [&](double x) { return x * hardsigmoid(x); }},
      {"silu", [](double x) { return x / (1 + std::exp(-x)); }},
      {"gelu", [](double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }}};
  for (const auto& [kind, definition] : definitions) {
    SCOPED_TRACE(kind);
    LayerFixture f("input: [64]\nclasses: 64\nlayers: [" + kind + "]", 21);
    for (std::size_t i = 0; i < f.inputs.size(); ++i)
      f.inputs[i] = -15.0f + 30.0f * static_cast<float>(i) / static_cast<float>(f.inputs.size());
    const std::vector<float> kinks = {-3.0f, 3.0f, 0.0f, -2.9999998f, 2.9999998f, 1e-20f, -1e-20f, 1e30f};
    std::ranges::copy(kinks, f.inputs.begin());
    f.network.forward_train({f.inputs, f.labels}, 0);
    for (std::size_t i = 0; i < f.inputs.size(); ++i) {
      const auto x = static_cast<double>(f.inputs[i]);
      EXPECT_NEAR(static_cast<double>(f.network.logits()[i]), definition(x),
                  4e-7 * std::min(1.0, std::abs(x)) + 2e-7 * std::abs(definition(x)))
          << x;
    }
    f.inputs[0] = std::nanf("");
    f.inputs[1] = std::numeric_limits<float>::infinity();
    f.network.forward_train({f.inputs, f.labels}, 0);
    EXPECT_TRUE(std::isnan(f.network.logits()[0]));
    EXPECT_EQ(f.network.logits()[1], kind == "hardsigmoid" ? 1 : std::numeric_limits<float>::infinity());
  }
}

TEST(Forward, Multiply) {
  const auto check = [](const std::string& others, const std::string& inputs, bool has_gate) {
    LayerFixture f("input: [5, 3, 4]\nclasses: 60\nlayers:\n  - {scale: x, factor: 1}\n" + others +
                       "  - {multiply: m, input: " + inputs + "}\n  - flatten\n",
                   3);
    check_forward(f, true, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
      double largest = -1e30;
      for (std::int64_t i = 0; i < 5; ++i)
        for (std::int64_t j = 0; j < 3; ++j) largest = std::max(largest, read(f, n, i, j, c, 0));
      const double v = read(f, n, y, x, c, 0);
      return v * (has_gate ? largest : v);
    });
  };
  check("  - {max_pool: p}\n", "[x, p]", true);
  check("  - {max_pool: p}\n", "[p, x]", true);
  check("  - {max_pool: p}\n  - {flatten: v}\n", "[v, x]", true);
  check("  - {max_pool: p}\n  - {flatten: v}\n", "[x, v]", true);
  check("", "[x, x]", false);
}

TEST(Forward, LayerNorm) {
  for (const auto& [eps, has_bias] : {std::pair{1e-5, true}, {0.5, true}, {1e-5, false}}) {
    LayerFixture f(one_layer(fmt::format("{{layer_norm: n, eps: {}, bias: {}}}", eps, has_bias), 7 * 5 * 4),
                   2);
    const std::span<float> w = f.network.parameters();
    ASSERT_EQ(f.network.tensors().size(), has_bias ? 2u : 1u);
    for (std::size_t c = 0; c < 4; ++c) w[c] = 0.5f + static_cast<float>(c);
    const auto bias = [&](std::int64_t c) {
      return has_bias ? w.data() + f.network.tensors()[1].offset + c : nullptr;
    };
    for (std::int64_t c = 0; has_bias && c < 4; ++c) *bias(c) = -2.0f * w[static_cast<std::size_t>(c)];
    for (const bool training : {true, false})
      check_forward(f, training, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
        double mean = 0, variance = 0;
        for (std::int64_t i = 0; i < 4; ++i) mean += read(f, n, y, x, i, 0) / 4;
        for (std::int64_t i = 0; i < 4; ++i) variance += std::pow(read(f, n, y, x, i, 0) - mean, 2) / 4;
        return (read(f, n, y, x, c, 0) - mean) / std::sqrt(variance + eps) *
                   static_cast<double>(w[static_cast<std::size_t>(c)]) +
               (has_bias ? static_cast<double>(*bias(c)) : 0);
      });
  }
}

TEST(Forward, GroupNorm) {
  for (const auto& [eps, groups] : {std::pair{1e-5, 2}, {0.5, 1}, {1e-3, 4}}) {
    LayerFixture f(one_layer(fmt::format("{{group_norm: n, eps: {}, groups: {}}}", eps, groups), 7 * 5 * 4),
                   3);
    const std::span<float> w = f.network.parameters();
    const float* const bias = w.data() + f.network.tensors()[1].offset;
    for (std::int64_t c = 0; c < 4; ++c) {
      w[static_cast<std::size_t>(c)] = 0.5f + static_cast<float>(c);
      w[f.network.tensors()[1].offset + static_cast<std::size_t>(c)] = -0.75f * static_cast<float>(c);
    }
    for (const bool training : {true, false})
      check_forward(f, training, [&](std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
        const std::int64_t in_group = 4 / groups, first = c / in_group * in_group;
        const auto each = [&](const auto& add) {
          for (std::int64_t i = 0; i < 7; ++i)
            for (std::int64_t j = 0; j < 5; ++j)
              for (std::int64_t k = first; k < first + in_group; ++k) add(read(f, n, i, j, k, 0));
        };
        const double count = static_cast<double>(7 * 5 * in_group);
        double mean = 0, variance = 0;
        each([&](double v) { mean += v / count; });
        each([&](double v) { variance += (v - mean) * (v - mean) / count; });
        return (read(f, n, y, x, c, 0) - mean) / std::sqrt(variance + eps) *
                   static_cast<double>(w[static_cast<std::size_t>(c)]) +
               static_cast<double>(bias[c]);
      });
  }
}

/// Attention by its definition, in double, of inputs in [0, 4), in training at step 0. Weight j of row t of
/// head h is dropped by word j mod 4 of Philox block (h frames + t) ceil(frames / 4) + j / 4.
void check_attention(bool causal, double dropout, const std::vector<std::int32_t>& lengths) {
  constexpr std::int64_t frames = 9, heads = 3, width = 5, features = heads * width, batch = 2, first = 6;
  const NetworkSpec spec(config::parse_text(
      fmt::format("name: t\ninput: [9, 45]\nclasses: 15\nlayers: [{{attention: a, heads: 3, causal: "
                  "{}, dropout: {}}}]",
                  causal, dropout),
      "test"));
  Network network(spec, {.batch = batch, .first = first, .seed = 21});
  PhiloxSequence random(5, RandomUse::dataset, 0);
  std::vector<float> inputs(static_cast<std::size_t>(batch * frames * 3 * features));
  for (float& x : inputs) x = 4 * random.uniform();
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(batch * frames), -1);
  network.forward_train({.inputs = inputs, .labels = labels, .lengths = lengths}, 17);
  for (std::int64_t n = 0; n < batch; ++n) {
    const std::int64_t length = lengths.empty() ? frames : lengths[static_cast<std::size_t>(n)];
    const auto in = [&](std::int64_t t, std::int64_t part, std::int64_t c) {
      return static_cast<double>(
          inputs[static_cast<std::size_t>((n * frames + t) * 3 * features + part * features + c)]);
    };
    const auto factor = [&](std::int64_t head, std::int64_t t, std::int64_t j) {
      const std::int64_t block = (head * frames + t) * ((frames + 3) / 4) + j / 4;
      const Philox4x32 draw =
          philox4x32(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(first + n), 17, 1, 21,
                     static_cast<std::uint32_t>(RandomUse::dropout));
      return draw.x[j % 4] >= dropout * 0x1p32 ? 1 / (1 - dropout) : 0.0;
    };
    for (std::int64_t t = 0; t < frames; ++t)
      for (std::int64_t c = 0; c < features; ++c) {
        double sum = 0, weighted = 0;
        const std::int64_t head = c / width, end = causal ? std::min(t + 1, length) : length;
        for (std::int64_t j = 0; j < end && t < length; ++j) {
          double score = 0;
          for (std::int64_t i = head * width; i < (head + 1) * width; ++i) score += in(t, 0, i) * in(j, 1, i);
          const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
          sum += weight;
          weighted += factor(head, t, j) * weight * in(j, 2, c);
        }
        ASSERT_NEAR(
            static_cast<double>(network.logits()[static_cast<std::size_t>((n * frames + t) * features + c)]),
            sum > 0 ? weighted / sum : 0, 2e-5 / (1 - dropout))
            << "sample " << n << " frame " << t << " feature " << c;
      }
  }
}

TEST(Forward, Attention) {
  for (const bool causal : {false, true})
    for (const std::vector<std::int32_t>& lengths : {std::vector<std::int32_t>{}, {9, 4}, {0, 7}})
      for (const double dropout : {0.0, 0.4}) {
        SCOPED_TRACE(fmt::format("causal {}, dropout {}", causal, dropout));
        check_attention(causal, dropout, lengths);
      }
}

/// In evaluation nothing is dropped.
TEST(Forward, AttentionOfAnEvaluationIsThatWithoutDropout) {
  const std::string network = "input: [9, 45]\nclasses: 15\nlayers: [{attention: a, heads: 3, dropout: ";
  LayerFixture with(network + "0.5}]", 2), without(network + "0}]", 2);
  for (LayerFixture* f : {&with, &without}) f->network.forward_eval({f->inputs, f->labels}, 2);
  EXPECT_TRUE(std::ranges::equal(with.network.logits(), without.network.logits()));
}

TEST(Forward, Frames) {
  LayerFixture f(
      "input: [2, 3, 4]\nclasses: 4\nlayers: [to_sequence, {class_token: t}, {position: p, frames: 8}, "
      "{select_frame: s, index: 5}, {select_frame: r, input: p}, {mean_frames: m, input: to_sequence}, "
      "{add: a, input: [s, r, m]}]",
      2);
  const std::span<const float> w = f.network.parameters();
  ASSERT_EQ(f.network.tensors()[0].name, "t.weight");
  const float* const table = w.data() + f.network.tensors()[1].offset;
  f.network.forward_train({f.inputs, f.labels}, 0);
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t c = 0; c < 4; ++c) {
      float mean = 0;
      for (std::size_t pixel = 0; pixel < 6; ++pixel) mean += f.inputs[n * 24 + pixel * 4 + c] / 6;
      // Frame 5 is pixel 4 of row by row.
      EXPECT_NEAR(f.network.logits()[n * 4 + c],
                  f.inputs[n * 24 + 4 * 4 + c] + table[5 * 4 + c] + w[c] + table[c] + mean, 1e-6);
    }
}

/// The mask is random and scaled. It differs in every step and layer, is off in evaluation, and does not
/// depend on the rank.
TEST(Forward, DropoutDependsOnThePositionInTheGlobalBatch) {
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
    LayerFixture f(one_layer("{batch_norm: b}", 7 * 5 * 4), 3);
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

/// Inputs and labels behind the end of a sequence change nothing. A short sequence gives the same result
/// alone.
TEST(Forward, SequencesEndAtTheirLengths) {
  const auto text = [](int frames, const std::string& layers) {
    return "input: [" + std::to_string(frames) + ", 4]\nclasses: 3\nlayers: [" + layers +
           ", {dense: fc, units: 3}]";
  };
  for (const std::string layers :
       {"{lstm: a, cell: 7, projection: 5}, {lstm: b, cell: 6}",
        "{position: p, frames: 6}, {dense: d, units: 18}, {attention: a, heads: 2}, layer_norm, {dense: e, "
        "units: 18}, {attention: b, heads: 3}",
        "{dense: d, units: 18}, {attention: a, heads: 2, causal: true}, layer_norm, gelu"}) {
    SCOPED_TRACE(layers);
    LayerFixture f(text(6, layers), 2);
    f.lengths = {3, 6};
    const double loss = f.loss();
    f.network.backward({});
    const std::vector<float> gradients(f.network.gradients().begin(), f.network.gradients().end());
    for (std::size_t i = 3 * 4; i < 6 * 4; ++i) f.inputs[i] = std::nanf("");
    for (std::size_t i = 3; i < 6; ++i) f.labels[i] = 99;
    EXPECT_EQ(f.loss(), loss);
    f.network.backward({});
    EXPECT_TRUE(std::equal(gradients.begin(), gradients.end(), f.network.gradients().begin()));

    LayerFixture alone(text(3, layers), 1);
    for (std::size_t t = 0; t < f.network.tensors().size(); ++t) {
      const TensorInfo &from = f.network.tensors()[t], &to = alone.network.tensors()[t];
      std::copy_n(f.network.parameters().begin() + from.offset, to.elements,
                  alone.network.parameters().begin() + to.offset);
    }
    std::copy_n(f.inputs.begin(), 12, alone.inputs.begin());
    alone.loss();
    for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(alone.network.logits()[i], f.network.logits()[i], 1e-6);
    f.lengths = {7, 6};
    EXPECT_THROW(f.loss(), std::exception);
  }
}

}  // namespace
}  // namespace lpsgd
