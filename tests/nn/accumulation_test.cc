// Gradient accumulation: steps of several micro-batches against single passes over the same samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "nn/network.h"
#include "tests/nn/frozen_network.h"
#include "tests/nn/layer_fixture.h"
#include "tests/nn/random_samples.h"

namespace lpsgd {
namespace {

const std::string images =
    "input: [12, 12, 6]\nclasses: 7\nlayers:\n"
    "  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: b1}\n  - {relu: r1}\n"
    "  - {conv: c2, filters: 5, kernel: 3, pad: 1}\n  - {group_norm: g2, groups: 5}\n  - {tanh: t2}\n  - "
    "{dropout: d, probability: 0.4}\n"
    "  - flatten\n  - {dense: f1, units: 21}\n  - sigmoid\n  - {dense: f2, units: 7}\n";

constexpr std::int64_t batch = 4, parts = 3;

/// Samples of all micro-batches.
struct Data {
  explicit Data(const NetworkSpec& spec) { draw_samples(spec, parts * batch, inputs, labels); }
  Samples part(std::int64_t m) const {
    const std::size_t width = inputs.size() / (parts * batch);
    return {.inputs = std::span(inputs).subspan(static_cast<std::size_t>(m * batch) * width, batch * width),
            .labels = std::span(labels).subspan(static_cast<std::size_t>(m * batch), batch)};
  }

  std::vector<float> inputs;
  std::vector<std::int32_t> labels;
};

std::vector<float> copy_of(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// The reference: one network a micro-batch, whose gradients are added in order and scaled. Weights are
// changed between steps, so that a sum left over from the step before would show.
TEST(Accumulation, GivesTheMeanOfItsMicroBatches) {
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute)) continue;
    for (const bool announces : {false, true}) {
      for (const std::vector<std::string>& frozen : {std::vector<std::string>{}, {"c1", "b1"}}) {
        const NetworkSpec spec = frozen_spec(images, frozen);
        const Data data(spec);
        const NetworkOptions options{
            .batch = batch, .first = 24, .micro_batches = parts, .threads = 2, .compute = compute};
        Network network(spec, options);
        std::vector<std::unique_ptr<Network>> single;
        for (std::int64_t m = 0; m < parts; ++m) {
          NetworkOptions own = options;
          own.micro_batches = 1;
          own.first += m * batch;  // dropout draws by the position in the global batch
          single.push_back(std::make_unique<Network>(spec, own));
        }
        for (std::int64_t step = 0; step < 3; ++step) {
          for (float& w : network.parameters()) w *= 0.9f;
          std::vector<float> mean(network.gradients().size());
          double loss = 0;
          for (std::int64_t m = 0; m < parts; ++m) {
            Network& one = *single[static_cast<std::size_t>(m)];
            std::ranges::copy(network.parameters(), one.parameters().begin());
            one.forward_train(data.part(m), step);
            one.backward({});
            for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += one.gradients()[i];
            loss += one.take_metrics().loss;
          }
          for (float& g : mean) g *= static_cast<float>(1.0 / parts);

          std::vector<std::size_t> announced;
          for (std::int64_t m = 0; m < parts; ++m) {
            Samples samples = data.part(m);
            samples.micro_batch = m;
            network.forward_train(samples, step);
            EXPECT_TRUE(announced.empty());
            if (!announces) {
              network.backward({});
              continue;
            }
            network.backward([&](std::size_t t) {
              const TensorInfo& info = network.tensors()[t];
              for (std::int64_t i = info.offset; i < info.offset + info.elements; ++i)
                ASSERT_EQ(network.gradients()[static_cast<std::size_t>(i)], mean[static_cast<std::size_t>(i)])
                    << info.name << " is not final when it is announced";
              announced.push_back(t);
            });
          }
          EXPECT_EQ(announced, announces ? network.announce_order() : std::vector<std::size_t>{});
          EXPECT_EQ(copy_of(network.gradients()), mean);
          const BatchMetrics sums = network.take_metrics();
          EXPECT_EQ(sums.samples, parts * batch);
          EXPECT_NEAR(sums.loss, loss, 1e-9 * loss);
        }
      }
    }
  }
}

TEST(Accumulation, RunningStatisticsSeeEachMicroBatch) {
  const NetworkSpec spec = frozen_spec(images, {});
  const Data data(spec);
  Network network(spec, {.batch = batch, .micro_batches = parts}), single(spec, {.batch = batch});
  for (std::int64_t m = 0; m < parts; ++m) {
    Samples samples = data.part(m);
    single.forward_train(samples, 0);
    single.backward({});
    samples.micro_batch = m;
    network.forward_train(samples, 0);
    network.backward({});
  }
  for (std::size_t b = 0; b < network.buffers().size(); ++b)
    EXPECT_EQ(copy_of(network.buffers()[b].values), copy_of(single.buffers()[b].values));
}

// A batch of sequences in one pass, and in micro-batches: the state that each carries is its own, in training
// and in evaluation, and carried_state() has the samples' order.
TEST(Accumulation, SequencesContinueWithTheirOwnState) {
  const std::string text =
      "input: [4, 5]\nclasses: 3\nlayers: [{lstm: a, cell: 9, projection: 4}, {lstm: b, cell: 6}, "
      "{attention: t, heads: 2, input: [b, b, b]}, layer_norm, {dense: fc, units: 3}]";
  LayerFixture f(text, 6);
  const NetworkOptions options{.batch = 2, .micro_batches = 3};
  Network network(f.spec, options);
  std::ranges::copy(f.network.parameters(), network.parameters().begin());
  const std::size_t inputs = 4 * 5, labels = 4;  // of a sample
  for (std::int64_t step = 0; step < 4; ++step) {
    f.lengths = {4, 3, 4, 1, 4, static_cast<std::int32_t>(step)};
    f.continues = {step > 0, 1, 0, 1, step != 2, 1};
    f.loss_divisor = 17;
    for (const bool training : {false, true}) {
      training ? f.network.forward_train(f.samples(), step) : f.network.forward_eval(f.samples(), 6);
      const std::vector<float> scores = copy_of(f.network.logits());
      for (std::size_t m = 0; m < 3; ++m) {
        Samples samples{.inputs = std::span(f.inputs).subspan(2 * m * inputs, 2 * inputs),
                        .labels = std::span(f.labels).subspan(2 * m * labels, 2 * labels),
                        .lengths = std::span(f.lengths).subspan(2 * m, 2),
                        .continues = std::span(f.continues).subspan(2 * m, 2),
                        .loss_divisor = 17.0 / 3,
                        .micro_batch = static_cast<std::int64_t>(m)};
        training ? network.forward_train(samples, step) : network.forward_eval(samples, 2);
        const std::span<const float> got = network.logits();
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], scores[m * got.size() + i], 1e-6) << step << ", " << m << ", " << i;
        if (training) network.backward({});
      }
    }
    f.network.backward({});
    for (std::size_t i = 0; i < network.gradients().size(); ++i)
      ASSERT_NEAR(network.gradients()[i], f.network.gradients()[i], 1e-6);
    const std::vector<NamedBuffer> carried = network.carried_state(), whole = f.network.carried_state();
    ASSERT_EQ(carried.size(), 4u);
    for (std::size_t i = 0; i < carried.size(); ++i) {
      EXPECT_EQ(carried[i].shape, whole[i].shape);
      for (std::size_t k = 0; k < carried[i].values.size(); ++k)
        ASSERT_NEAR(carried[i].values[k], whole[i].values[k], 1e-6) << carried[i].name;
    }
  }
}

// A gradient that two layers add to, against that of one pass.
TEST(Accumulation, SharedWeights) {
  LayerFixture f(
      "input: [5]\nclasses: 9\nlayers: [{embedding: e, vocabulary: 9, dimension: 6}, {dense: h, units: 6}, "
      "{dense: fc, units: 9, weight_of: e}]",
      6);
  for (std::size_t i = 0; i < f.inputs.size(); ++i) f.inputs[i] = static_cast<float>(i * i % 7);
  Network network(f.spec, {.batch = 2, .micro_batches = 3});
  std::ranges::copy(f.network.parameters(), network.parameters().begin());
  for (std::int64_t step = 0; step < 2; ++step) {
    f.loss();
    f.network.backward({});
    std::vector<std::size_t> announced;
    for (std::size_t m = 0; m < 3; ++m) {
      network.forward_train({.inputs = std::span(f.inputs).subspan(10 * m, 10),
                             .labels = std::span(f.labels).subspan(10 * m, 10),
                             .micro_batch = static_cast<std::int64_t>(m)},
                            step);
      network.backward([&](std::size_t t) { announced.push_back(t); });
    }
    // fc.bias, h.weight, h.bias, and only then the weight that fc shares.
    EXPECT_EQ(announced, (std::vector<std::size_t>{3, 1, 2, 0}));
    EXPECT_EQ(announced, network.announce_order());
    for (std::size_t i = 0; i < network.gradients().size(); ++i)
      ASSERT_NEAR(network.gradients()[i], f.network.gradients()[i], 1e-6) << step << ", " << i;
  }
}

TEST(Accumulation, MicroBatchesComeInOrder) {
  const NetworkSpec spec = frozen_spec(images, {});
  const Data data(spec);
  Network network(spec, {.batch = batch, .micro_batches = parts});
  Samples samples = data.part(0);
  samples.micro_batch = 1;
  EXPECT_THROW(network.forward_train(samples, 0), Error);
  EXPECT_NO_THROW(network.forward_eval(samples, batch));
  samples.micro_batch = parts;
  EXPECT_THROW(network.forward_eval(samples, batch), Error);
  samples.micro_batch = 0;
  network.forward_train(samples, 0);
  network.backward({});
  EXPECT_THROW(network.forward_train(samples, 0), Error);
  EXPECT_THROW(Network(spec, {.batch = batch, .micro_batches = 0}), Error);
}

}  // namespace
}  // namespace lpsgd
