// A network as a whole: determinism, initial weights, metrics, evaluation, buffers, orders of elements.
#include "nn/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/data_type.h"
#include "core/error.h"
#include "core/philox.h"
#include "nn/shape.h"
#include "tests/nn/recompute_cases.h"

namespace lpsgd {
namespace {

const std::string small =
    "input: [6, 6, 3]\nclasses: 7\nlayers:\n  - {conv: c, filters: 16, kernel: 3, pad: 1, bias: false}\n"
    "  - {batch_norm: b}\n  - relu\n  - average_pool\n  - flatten\n  - {dense: fc, units: 7}\n";

NetworkSpec spec_of(const std::string& text) {
  return NetworkSpec(config::parse_text(text, "net.yaml"));
}

std::vector<float> images(std::size_t count) {
  PhiloxSequence draw(9, RandomUse::dataset, 0);
  std::vector<float> out(count);
  for (float& x : out) x = 2 * draw.uniform() - 1;
  return out;
}

std::vector<float> gradients_of(int threads) {
  Network network(spec_of(small), {.batch = 5, .threads = threads});
  const std::vector<std::int32_t> labels{0, 1, 2, 3, 6};
  const std::vector<float> x = images(5 * 108);
  network.forward_train({x, labels}, 0);
  network.backward({});
  return {network.gradients().begin(), network.gradients().end()};
}

TEST(Network, SameThreadsSameBytes) {
  EXPECT_EQ(gradients_of(1), gradients_of(1));
  EXPECT_EQ(gradients_of(3), gradients_of(3));
  const std::vector<float> one = gradients_of(1), three = gradients_of(3);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], three[i], 1e-5);
}

// Each step reads memory that the one before has written, so a value that is not there is seen in the bits.
TEST(Network, RecomputationGivesTheSameBits) {
  const auto trained = [](const std::string& text, std::int64_t batch, Compute compute, int threads,
                          Recompute recompute) {
    const NetworkSpec spec = spec_of(text);
    Network network(spec, {.batch = batch, .threads = threads, .compute = compute, .recompute = recompute});
    std::vector<float> out;
    for (int step = 0; step < 3; ++step) {
      std::vector<float> x =
          images(static_cast<std::size_t>(batch * elements_of(spec.input_shape()).value()));
      std::ranges::rotate(x, x.begin() + 7 * step);
      std::vector<std::int32_t> labels;
      for (std::int32_t i = 0; i < batch; ++i) labels.push_back(i * 3 % 5);
      network.forward_train({x, labels}, step);
      network.backward({});
      out.insert(out.end(), network.gradients().begin(), network.gradients().end());
      for (std::size_t i = 0; i < network.gradients().size(); ++i)
        network.parameters()[i] -= 0.1f * network.gradients()[i];
    }
    for (const NamedBuffer& b : network.buffers()) out.insert(out.end(), b.values.begin(), b.values.end());
    return out;
  };
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute)) continue;
    for (const int threads : {1, 2})
      for (const auto& [text, batch] :
           {std::pair(recompute_network, 3), std::pair(recompute_rowwise_network, 32)})
        EXPECT_TRUE(trained(text, batch, compute, threads, Recompute::batch_norm) ==
                    trained(text, batch, compute, threads, Recompute::none));
  }
}

TEST(Network, InitialWeightsDependOnSeedAndTensor) {
  const NetworkSpec spec = spec_of(small);
  Network a(spec, {.batch = 1}), b(spec, {.batch = 4, .inference_only = true}), c(spec, {.seed = 2});
  EXPECT_TRUE(std::equal(a.parameters().begin(), a.parameters().end(), b.parameters().begin()));
  EXPECT_NE(a.parameters()[0], c.parameters()[0]);
  EXPECT_TRUE(b.gradients().empty());

  const NetworkSpec wide = spec_of(
      "input: [3, 3, 64]\nclasses: 4\nlayers:\n  - {conv: c, filters: 100, kernel: 3}\n"
      "  - flatten\n  - {dense: fc, units: 4}\n");
  Network network(wide, {});
  double squares = 0, largest = 0;
  const TensorInfo& conv = wide.tensors()[0];
  for (std::int64_t i = 0; i < conv.elements; ++i)
    squares += std::pow(static_cast<double>(network.parameters()[static_cast<std::size_t>(i)]), 2);
  EXPECT_NEAR(squares / static_cast<double>(conv.elements), 2.0 / (100 * 9), 0.05 * 2.0 / (100 * 9));
  const TensorInfo& dense = wide.tensors()[2];
  for (std::int64_t i = 0; i < dense.elements; ++i)
    largest = std::max(
        largest,
        std::abs(static_cast<double>(network.parameters()[static_cast<std::size_t>(dense.offset + i)])));
  EXPECT_LE(largest, 0.1);
  EXPECT_GT(largest, 0.095);
}

TEST(Network, InitialWeightsOfASharedTensorAreTheEmbeddings) {
  const auto weights = [](const std::string& last) {
    Network network(
        spec_of("input: [9]\nclasses: 40\nlayers:\n  - {embedding: e, vocabulary: 40, dimension: 30}\n"
                "  - {dense: d, units: 40" +
                last + "}\n"),
        {});
    return std::vector<float>(network.parameters().begin(), network.parameters().begin() + 40 * 30);
  };
  EXPECT_EQ(weights(", weight_of: e"), weights(""));
}

TEST(Network, InitialWeightsMayBeUniformInARange) {
  const NetworkSpec spec = spec_of(
      "input: [9]\nclasses: 40\nlayers:\n  - {embedding: e, vocabulary: 50, dimension: 30, init_range: 0.1}\n"
      "  - {lstm: l, cell: 30, init_range: 0.1}\n  - {dense: d, units: 40, init_range: 0.1, init_bias: 0}\n");
  Network network(spec, {});
  for (const TensorInfo& t : spec.tensors()) {
    double sum = 0, largest = 0;
    for (std::int64_t i = 0; i < t.elements; ++i) {
      const auto w = static_cast<double>(network.parameters()[static_cast<std::size_t>(t.offset + i)]);
      sum += w;
      largest = std::max(largest, std::abs(w));
    }
    if (t.name == "d.bias") {
      EXPECT_EQ(largest, 0);
      continue;
    }
    const double deviation = 0.1 / std::sqrt(3 * static_cast<double>(t.elements));  // of the mean
    EXPECT_NEAR(sum / static_cast<double>(t.elements), 0, 4 * deviation) << t.name;
    EXPECT_LE(largest, 0.1f) << t.name;
    EXPECT_GT(largest, 0.09) << t.name;
  }
  try {
    spec_of("input: [4]\nclasses: 3\nlayers: [{dense: d, units: 3, init_range: 1, init_deviation: 1}]");
    FAIL() << "no ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "net.yaml:3:10: layer 'd': init_deviation and init_range exclude each other");
  }
}

TEST(Network, ABatchNormNeedsSeveralValuesOfAChannel) {
  const std::string text =
      "input: [6, 6, 3]\nclasses: 7\nlayers:\n  - flatten\n  - {dense: d, units: 8}\n  - {batch_norm: b}\n"
      "  - {dense: fc, units: 7}\n";
  try {
    Network(spec_of(text), {.batch = 1});
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(
        e.what(),
        "net.yaml:6:5: layer 'b': a training pass has one value of each channel, so the output would "
        "not depend on the input; give each rank and micro-batch several samples");
  }
  Network(spec_of(text), {.batch = 1, .inference_only = true});
  Network(spec_of(text), {.batch = 2});
  Network(spec_of(small), {.batch = 1});
}

TEST(Network, MetricsCountRanksAndValidSamples) {
  // The network is the identity on six features, so inputs are scores.
  Network network(spec_of("input: [6]\nclasses: 6\nlayers: [{dense: fc, units: 6, bias: false}]"),
                  {.batch = 4});
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 6; ++j) network.parameters()[i * 6 + j] = i == j ? 1.0f : 0.0f;
  const std::vector<float> scores{5, 1, 1, 1, 1, 1,   // label 0: first
                                  5, 1, 1, 1, 1, 1,   // label 5: five before it, ties by index
                                  2, 2, 0, 0, 0, 0,   // label 1: tied, second
                                  0, 0, 0, 0, 0, 9};  // label 5: first
  network.forward_eval({scores, std::vector<std::int32_t>{0, 5, 1, 5}}, 4);
  BatchMetrics m = network.take_metrics();
  EXPECT_EQ(m.samples, 4);
  EXPECT_EQ(m.top1, 2);
  EXPECT_EQ(m.top5, 3);
  const double e = std::exp(1.0);
  EXPECT_NEAR(m.loss,
              std::log(1 + 5 * std::pow(e, -4)) + std::log(std::pow(e, 4) + 5) +
                  std::log(2 + 4 * std::pow(e, -2)) + std::log(1 + 5 * std::pow(e, -9)),
              1e-6);
  network.forward_eval({scores, std::vector<std::int32_t>{0, 5, 1, 5}}, 2);
  m = network.take_metrics();
  EXPECT_EQ(m.samples, 2);
  EXPECT_EQ(m.top1, 1);
  EXPECT_EQ(network.take_metrics().samples, 0);
  EXPECT_THROW(network.forward_eval({scores, std::vector<std::int32_t>{6, 0, 0, 0}}, 4), Error);
}

TEST(Network, EvaluationUsesRunningStatisticsAndLeavesThem) {
  const NetworkSpec spec = spec_of(small);
  Network train(spec, {.batch = 5}), eval(spec, {.batch = 5, .inference_only = true});
  const std::vector<float> x = images(5 * 108);
  const std::vector<std::int32_t> labels{0, 1, 2, 3, 4};
  for (int i = 0; i < 3; ++i) train.forward_train({x, labels}, 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::span<float> from = train.buffers()[i].values;
    std::copy(from.begin(), from.end(), eval.buffers()[i].values.begin());
  }
  const std::vector<float> before(train.buffers()[0].values.begin(), train.buffers()[0].values.end());
  train.forward_eval({x, labels}, 5);
  eval.forward_eval({x, labels}, 5);
  for (std::size_t i = 0; i < train.logits().size(); ++i)
    EXPECT_NEAR(train.logits()[i], eval.logits()[i], 1e-6);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), train.buffers()[0].values.begin()));
  EXPECT_THROW(train.backward({}), Error);
}

/// 513 and 514 are one number in bfloat16; as tokens they are two.
TEST(Network, Bfloat16KeepsTokensAndGivesFloat32Scores) {
  if (const auto why = unsupported(Compute::bf16)) GTEST_SKIP() << *why;
  Network network(spec_of("input: [2]\nclasses: 8\nlayers:\n"
                          "  - {embedding: e, vocabulary: 600, dimension: 8}\n"),
                  {.batch = 1, .compute = Compute::bf16});
  const std::vector<float> tokens{513, 514};
  const std::vector<std::int32_t> labels{1, 2};
  network.forward_train({tokens, labels}, 0);
  const std::span<const float> logits = network.logits();
  ASSERT_EQ(logits.size(), 16u);
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_EQ(logits[i], widen(narrow<Bf16>(network.parameters()[513 * 8 + i])));
  network.backward({});
  const std::span<const float> gradients = network.gradients();
  for (std::size_t row = 0; row < 600; ++row) {
    const auto at = gradients.begin() + static_cast<std::ptrdiff_t>(row * 8);
    const bool read = row == 513 || row == 514;
    EXPECT_EQ(std::any_of(at, at + 8, [](float g) { return g != 0; }), read) << row;
  }
  // What backward left is softmax - onehot, in bfloat16.
  const BatchMetrics m = network.take_metrics();
  EXPECT_EQ(m.samples, 2);
  EXPECT_TRUE(std::isfinite(m.loss));
}

TEST(Network, PytorchOrderIsThereAndBack) {
  TensorInfo t{"w", TensorKind::conv, {2, 3, 2, 2}, 24, 0};
  std::vector<float> pytorch(24), memory(24), back(24);
  std::iota(pytorch.begin(), pytorch.end(), 0.0f);
  from_pytorch_order(t, pytorch.data(), memory.data());
  // Memory (o, h, w, i) holds PyTorch's (o, i, h, w).
  EXPECT_EQ(memory[0], 0.0f);
  EXPECT_EQ(memory[1], 4.0f);
  EXPECT_EQ(memory[2], 8.0f);
  EXPECT_EQ(memory[3], 1.0f);
  EXPECT_EQ(memory[12], 12.0f);
  to_pytorch_order(t, memory.data(), back.data());
  EXPECT_EQ(back, pytorch);
}

}  // namespace
}  // namespace lpsgd
