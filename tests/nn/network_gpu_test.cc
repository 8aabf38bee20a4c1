// Networks and the optimizer on the GPU against the CPU. (Every network file against PyTorch in float64 is
// nn_pytorch_cuda_*.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "core/philox.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "tests/core/gpu_test.h"
#include "tests/nn/frozen_network.h"
#include "tests/nn/recompute_cases.h"
#include "tests/nn/trained_network.h"

namespace lpsgd {
namespace {

/// A smooth network with every fusion: no kinks, whose luck would drown what is compared.
const std::string smooth =
    "input: [12, 12, 6]\nclasses: 7\nlayers:\n"
    "  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: b1}\n  - {tanh: t1}\n"
    "  - {conv: c2, filters: 16, kernel: 3, pad: 1}\n  - {batch_norm: b2}\n"
    "  - {add: s, input: [b2, t1]}\n  - {tanh: t2}\n  - {dropout: d, probability: 0.2}\n"
    "  - {average_pool: p, kernel: 3, stride: 2, pad: 1}\n  - {group_norm: g, groups: 4}\n  - {lrn: l, "
    "alpha: 0.5}\n"
    "  - {conv: c3, filters: 8, kernel: 3, stride: 2}\n  - {concat: c, input: [c3, c3]}\n"
    "  - flatten\n  - {dense: f1, units: 20}\n  - sigmoid\n  - {dense: f2, units: 7}\n";
const std::string kinked =
    "input: [12, 12, 6]\nclasses: 7\nlayers:\n"
    "  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: b1}\n  - {relu: r1}\n"
    "  - {conv: c2, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: b2}\n"
    "  - {add: s, input: [b2, r1]}\n  - {relu: r2}\n  - {max_pool: p, kernel: 2}\n"
    "  - {conv: c3, filters: 8, kernel: 3}\n  - {group_norm: g, groups: 2}\n  - {relu: r3}\n  - flatten\n"
    "  - {dense: f2, units: 7}\n";

/// After the same steps.
void expect_near(Trained& gpu, Trained& cpu) {
  EXPECT_LE(distance(gpu.gradients(), cpu.gradients()), 1e-3);
  EXPECT_LE(distance(gpu.network.logits(), cpu.network.logits()), 1e-4);
  EXPECT_LE(distance(gpu.weights(), cpu.weights()), 1e-4);
  for (std::size_t i = 0; i < cpu.network.buffers().size(); ++i)
    EXPECT_LE(distance(on_host(gpu.network.buffers()[i].values, gpu.network.stream()),
                       cpu.network.buffers()[i].values),
              1e-4)
        << cpu.network.buffers()[i].name;
}

using NetworkGpu = GpuTest;

TEST_F(NetworkGpu, InitialWeightsAreTheCpus) {
  Trained cpu(smooth, {.batch = 8}), gpu(smooth, {.batch = 8, .device = device});
  EXPECT_EQ(gpu.weights(), cpu.weights());
}

TEST_F(NetworkGpu, TrainsAsTheCpuDoes) {
  Trained cpu(smooth, {.batch = 8}), gpu(smooth, {.batch = 8, .device = device});
  for (int s = 0; s < 6; ++s) {  // the third step captures the passes, later ones launch them
    SCOPED_TRACE(s);
    cpu.step(s);
    gpu.step(s);
    const BatchMetrics a = cpu.network.take_metrics(), b = gpu.network.take_metrics();
    EXPECT_NEAR(b.loss, a.loss, 1e-4 * a.loss);
    EXPECT_EQ(b.samples, a.samples);
    expect_near(gpu, cpu);
  }
  EXPECT_EQ(gpu.network.captured(), 2u);
  cpu.network.forward_eval({cpu.inputs, cpu.labels}, 5);
  gpu.network.forward_eval({gpu.inputs, gpu.labels}, 5);
  const BatchMetrics a = cpu.network.take_metrics(), b = gpu.network.take_metrics();
  EXPECT_EQ(b.samples, 5);
  EXPECT_NEAR(b.loss, a.loss, 1e-4 * a.loss);
  EXPECT_EQ(gpu.network.take_metrics().samples, 0);
}

TEST_F(NetworkGpu, AccumulatesAsTheCpuDoes) {
  Trained cpu(smooth, {.batch = 4, .first = 36, .micro_batches = 3});
  Trained gpu(smooth, {.batch = 4, .first = 36, .micro_batches = 3, .device = device});
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    cpu.step(s);
    gpu.step(s);
    expect_near(gpu, cpu);
  }
  EXPECT_EQ(gpu.network.captured(), 4u);  // forward; backward of the first, the second and the last
}

TEST_F(NetworkGpu, FrozenLayersComputeAsTheCpus) {
  Trained cpu(frozen_network, {.batch = 8}, {}, frozen_layers);
  Trained gpu(frozen_network, {.batch = 8, .device = device}, {}, frozen_layers);
  gpu.network.announce_behind(std::vector<std::size_t>{3, 0});  // b3.weight, side.weight
  const TensorArena frozen = gpu.network.frozen();
  const std::vector<float> before = on_host(frozen.values, gpu.network.stream());
  EXPECT_TRUE(std::ranges::equal(before, cpu.network.frozen().values));
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    cpu.step(s);
    gpu.step(s, true);
    expect_near(gpu, cpu);
  }
  EXPECT_EQ(on_host(frozen.values, gpu.network.stream()), before);
  EXPECT_EQ(gpu.announced.size(), 5 * gpu.network.tensors().size());
  EXPECT_EQ(gpu.network.captured(),
            3u);  // forward, and two segments of backward: none of frozen layers alone
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute, device)) continue;
    Trained all(frozen_network, {.batch = 8, .compute = compute, .device = device, .deterministic = true}, {},
                {"{c,b}{1,2,3}", "d1", "side"});
    all.step(0);
    const std::vector<float> scores(all.network.logits().begin(), all.network.logits().end());
    Trained again(frozen_network, {.batch = 8, .compute = compute, .device = device, .deterministic = true},
                  {}, {"{c,b}{1,2,3}", "d1", "side"});
    again.network.forward_eval({.inputs = again.inputs, .labels = again.labels}, 8);
    EXPECT_LE(distance(again.network.logits(), scores), compute == Compute::fp32 ? 1e-6 : 1e-2);
  }
}

TEST_F(NetworkGpu, FirstStepOfAnArithmeticIsNearTheCpus) {
  for (const auto& [compute, bound] : {std::pair{Compute::tf32, 1e-2}, {Compute::bf16, 5e-2}}) {
    if (unsupported(compute, device)) continue;
    for (const bool deterministic : {false, true}) {
      Trained cpu(smooth, {.batch = 8});
      Trained gpu(smooth, {.batch = 8, .compute = compute, .device = device, .deterministic = deterministic});
      cpu.step(0);
      gpu.step(0);
      EXPECT_LE(distance(gpu.gradients(), cpu.gradients()), bound);
      EXPECT_GT(distance(gpu.gradients(), cpu.gradients()), 1e-6) << "that is fp32";
      for (std::size_t b = 0; b < cpu.network.buffers().size(); ++b) {
        const std::vector<float> running = on_host(gpu.network.buffers()[b].values, gpu.network.stream());
        EXPECT_LE(distance(running, cpu.network.buffers()[b].values), bound) << b;
      }
      if (!deterministic) continue;
      const std::vector<std::string> choices = gpu.network.choices();
      EXPECT_EQ(std::ranges::count_if(choices,
                                      [](const std::string& c) {
                                        return c.find("statistics by the convolution") != std::string::npos;
                                      }),
                compute == Compute::bf16 ? 1 : 0);  // of b1 and b2, which are alike
    }
  }
}

// Gradients of a step are the same whether its passes run as they are, are launched whole, or in groups
// between announcements.
using CapturedCase = std::tuple<Compute, std::int64_t>;  // and micro-batches
class CapturedGpu : public NetworkGpu, public ::testing::WithParamInterface<CapturedCase> {};
INSTANTIATE_TEST_SUITE_P(, CapturedGpu,
                         ::testing::Combine(::testing::Values(Compute::fp32, Compute::bf16),
                                            ::testing::Values(1, 2, 3)));

TEST_P(CapturedGpu, PassesAreTheSame) {
  const auto [compute, micro_batches] = GetParam();
  if (const auto why = unsupported(compute, device)) GTEST_SKIP() << *why;
  const NetworkOptions fixed{.batch = 8 / micro_batches,
                             .micro_batches = micro_batches,
                             .compute = compute,
                             .device = device,
                             .deterministic = true};
  NetworkOptions timed = fixed;
  timed.time_operations = true;
  const std::string& text = compute == Compute::bf16 && micro_batches == 3 ? joinable : kinked;
  Trained launched(text, fixed), plain(text, timed), every(text, fixed), grouped(text, fixed),
      one(text, fixed);
  const std::vector<std::size_t>& order = plain.network.announce_order();
  grouped.network.announce_behind(std::vector{order[0], order[3]});
  one.network.announce_behind({});
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    launched.step(s);
    for (Trained* t : {&plain, &every, &grouped, &one}) {
      t->announced.clear();
      t->step(s, true);
      EXPECT_EQ(t->announced, order);
      EXPECT_EQ(t->gradients(), launched.gradients());
      EXPECT_EQ(t->weights(), launched.weights());
    }
  }
  // Forward, and backward whole, not at all, or in two runs and what is left; of micro-batches in front of
  // the last one whole, the first by itself.
  const std::size_t in_front = std::min<std::size_t>(static_cast<std::size_t>(micro_batches) - 1, 2);
  EXPECT_EQ(launched.network.captured(), 2 + in_front);
  EXPECT_EQ(plain.network.captured(), 0u);
  EXPECT_EQ(every.network.captured(), 1 + in_front);
  EXPECT_EQ(grouped.network.captured(), 4 + in_front);
  EXPECT_EQ(one.network.captured(), 2 + in_front);
  for (const OperationTime& t : plain.network.take_times()) EXPECT_GT(t.forward, 0) << t.name;
  for (const OperationTime& t : launched.network.take_times()) EXPECT_EQ(t.forward, 0) << t.name;
  // Cut anew: in three, and whole.
  grouped.network.announce_behind(std::vector{order[1], order[4]});
  one.network.announce_behind({});
  for (int s = 5; s < 10; ++s) {
    SCOPED_TRACE(s);
    launched.step(s);
    for (Trained* t : {&grouped, &one}) {
      t->announced.clear();
      t->step(s, true);
      EXPECT_EQ(t->announced, order);
      EXPECT_EQ(t->gradients(), launched.gradients());
      EXPECT_EQ(t->weights(), launched.weights());
    }
  }
  EXPECT_EQ(grouped.network.captured(), 4 + in_front);
  EXPECT_EQ(one.network.captured(), 2 + in_front);
  EXPECT_THROW(launched.network.announce_behind(std::vector<std::size_t>{99}), Error);
}

// A gradient that has been announced is complete for a stream that waits for an event recorded at that
// moment.
TEST_F(NetworkGpu, RecomputationGivesTheSameBits) {
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute, device)) continue;
    const auto options = [&](Recompute recompute) {
      return NetworkOptions{
          .batch = 3, .compute = compute, .recompute = recompute, .device = device, .deterministic = true};
    };
    Trained kept(recompute_network, options(Recompute::none));
    Trained twice(recompute_network, options(Recompute::batch_norm));
    for (int s = 0; s < 4; ++s) {  // the third step captures the passes
      kept.step(s);
      twice.step(s);
      EXPECT_EQ(twice.gradients(), kept.gradients()) << s;
      EXPECT_EQ(twice.weights(), kept.weights()) << s;
    }
    EXPECT_EQ(twice.network.captured(), 2u);
  }
}

TEST_F(NetworkGpu, AnnouncedGradientsAreFinal) {
  for (const bool in_groups : {false, true}) {
    Trained gpu(kinked, {.batch = 8, .device = device, .deterministic = true});
    const std::vector<std::size_t>& order = gpu.network.announce_order();
    if (in_groups) gpu.network.announce_behind(std::vector{order[2], order.back()});
    const Stream other(device);
    Event announced(device);
    PinnedBuffer<float> copied(device, gpu.network.gradients().size());
    for (int s = 0; s < 5; ++s) {
      gpu.network.forward_train({gpu.inputs, gpu.labels, {}}, s);
      gpu.network.backward([&](std::size_t t) {
        const TensorInfo& info = gpu.network.tensors()[t];
        const auto at = static_cast<std::size_t>(info.offset), n = static_cast<std::size_t>(info.elements);
        announced.record(gpu.network.stream());
        other.wait(announced);
        copy_values(copied.view().subspan(at, n), gpu.network.gradients().subspan(at, n), other);
      });
      other.synchronize();
      const std::vector<float> expected = gpu.gradients();
      for (const TensorInfo& t : gpu.network.tensors())
        for (std::int64_t i = t.offset; i < t.offset + t.elements; ++i)
          ASSERT_EQ(copied[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)]) << t.name;
      gpu.optimizer.step(gpu.network.parameters(), gpu.network.gradients());
    }
  }
}

// A graph must not hold the lengths it was made with, what continues, or the divisor of the loss.
TEST_F(NetworkGpu, SequencesOfOtherLengthsAreCaptured) {
  const std::string sequences =
      "input: [6, 5]\nclasses: 4\nlayers: [{dense: d, units: 5}, {lstm: a, cell: 8, projection: 4}, {lstm: "
      "b, "
      "cell: 8}, {dense: fc, units: 4}]";
  for (const bool deterministic : {false, true}) {  // cuDNN's layer, and ours
    SCOPED_TRACE(deterministic);
    Trained cpu(sequences, {.batch = 3}),
        gpu(sequences, {.batch = 3, .device = device, .deterministic = deterministic});
    for (int s = 0; s < 9; ++s) {
      SCOPED_TRACE(s);
      for (Trained* t : {&cpu, &gpu}) {
        t->lengths = {s % 2 == 0 ? 6 : s % 6, 6 - s % 6, (3 * s + 2) % 7};
        t->continues = {s % 4 != 0, s % 3 != 0, s % 2};
        t->loss_divisor = s % 3 * 2.5;
        t->labels.assign(18, s % 4);
        t->step(s);
        // Passes in evaluation continue each other, between those in training.
        t->network.forward_eval({.inputs = t->inputs, .labels = t->labels, .continues = t->continues}, 3);
      }
      const BatchMetrics a = cpu.network.take_metrics(), b = gpu.network.take_metrics();
      EXPECT_EQ(b.samples, a.samples);
      EXPECT_NEAR(b.loss, a.loss, 1e-4 * a.loss);
      EXPECT_LE(distance(gpu.network.logits(), cpu.network.logits()), 1e-4);
      EXPECT_LE(distance(gpu.gradients(), cpu.gradients()), 1e-3);
      EXPECT_LE(distance(gpu.weights(), cpu.weights()), 1e-4);
      const std::vector<NamedBuffer> left = cpu.network.carried_state(), on_gpu = gpu.network.carried_state();
      ASSERT_EQ(on_gpu.size(), 4u);
      for (std::size_t i = 0; i < left.size(); ++i) {
        EXPECT_EQ(on_gpu[i].name, left[i].name);
        EXPECT_LE(distance(on_host(on_gpu[i].values, gpu.network.stream()), left[i].values), 1e-4)
            << left[i].name;
      }
    }
    EXPECT_EQ(gpu.network.captured(), 3u);
  }
}

TEST_F(NetworkGpu, TransformersOfOtherLengthsAreCaptured) {
  const std::string decoder =
      "input: [6, 5]\nclasses: 4\nlayers:\n  - {position: p, frames: 8}\n  - {layer_norm: n1}\n"
      "  - {dense: qkv, units: 36}\n  - {attention: a, heads: 2, causal: true}\n  - {dense: o, units: 5}\n"
      "  - {add: s1, input: [o, p]}\n  - {layer_norm: n2}\n  - {dense: q, units: 5}\n"
      "  - {dense: k, units: 5, input: n2}\n  - {dense: v, units: 5, input: n2}\n"
      "  - {attention: b, heads: 1, input: [q, k, v]}\n  - {add: s2, input: [b, s1]}\n"
      "  - {dense: fc, units: 4}\n";
  Trained cpu(decoder, {.batch = 3}), gpu(decoder, {.batch = 3, .device = device});
  for (int s = 0; s < 7; ++s) {
    SCOPED_TRACE(s);
    for (Trained* t : {&cpu, &gpu}) {
      t->lengths = {s % 2 == 0 ? 6 : s % 6, 6 - s % 6, (3 * s + 2) % 7};
      t->labels.assign(18, s % 4);
      t->step(s);
      // Another pass in between, without lengths.
      t->network.forward_eval({.inputs = t->inputs, .labels = t->labels}, 3);
    }
    const BatchMetrics a = cpu.network.take_metrics(), b = gpu.network.take_metrics();
    EXPECT_EQ(b.samples, a.samples);
    EXPECT_NEAR(b.loss, a.loss, 1e-4 * a.loss);
    expect_near(gpu, cpu);
  }
  EXPECT_EQ(gpu.network.captured(), 3u);
}

TEST_F(NetworkGpu, AVisionTransformerTrainsAsOnTheCpu) {
  const std::string vision =
      "input: [8, 12, 3]\nclasses: 5\nlayers:\n  - {conv: c, filters: 16, kernel: 4, stride: 4}\n"
      "  - to_sequence\n  - {class_token: t}\n  - {position: p, frames: 7}\n  - {layer_norm: n1}\n"
      "  - {dense: qkv, units: 48}\n  - {attention: a, heads: 2}\n  - {dense: o, units: 16}\n"
      "  - {add: s, input: [o, p]}\n  - {layer_norm: n2}\n  - {select_frame: f}\n  - {dense: fc, units: 5}\n";
  Trained cpu(vision, {.batch = 6}), gpu(vision, {.batch = 6, .device = device});
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    for (Trained* t : {&cpu, &gpu}) t->step(s);
    expect_near(gpu, cpu);
  }
  EXPECT_EQ(gpu.network.captured(), 2u);
}

// An embedding's backward adds to the gradient that the last layer's has written, in another segment. Fixed
// positions hand on the sum of many gradients.
TEST_F(NetworkGpu, ASharedWeightTrainsAsOnTheCpu) {
  const std::string words =
      "input: [6]\nclasses: 11\nlayers: [{embedding: e, vocabulary: 11, dimension: 8}, {dense: h, units: 8}, "
      "{position: p, frames: 7, trained: false}, {scale: w, factor: 0.1}, {add: s, input: [w, w, w, w, w, w, "
      "w, w, "
      "w]}, {add: t, input: [p, p, p, p, p, p, p, p, p, s]}, tanh, {dense: fc, units: 11, weight_of: e}]";
  Trained cpu(words, {.batch = 3, .micro_batches = 2}),
      gpu(words, {.batch = 3, .micro_batches = 2, .device = device});
  gpu.network.announce_behind(std::vector<std::size_t>{1});  // h.weight
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    for (Trained* t : {&cpu, &gpu}) {
      t->labels.assign(36, s % 4);
      for (std::size_t i = 0; i < t->inputs.size(); ++i)
        t->inputs[i] = static_cast<float>((i * i + static_cast<std::size_t>(s)) % 11);
      t->step(s, true);
    }
    expect_near(gpu, cpu);
    EXPECT_EQ(gpu.announced, cpu.announced);
  }
}

// The state that each micro-batch carries is its own.
TEST_F(NetworkGpu, MicroBatchesOfSequencesContinue) {
  const std::string sequences =
      "input: [6, 5]\nclasses: 4\nlayers: [{lstm: a, cell: 8, projection: 4}, {attention: t, heads: "
      "2, causal: true, input: [a, a, a]}, layer_norm, {dense: fc, units: 4}]";
  Trained cpu(sequences, {.batch = 2, .micro_batches = 3}),
      gpu(sequences, {.batch = 2, .micro_batches = 3, .device = device});
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    for (Trained* t : {&cpu, &gpu}) {
      t->continues = {s % 4 != 0, 1, 0, s % 2, 1, 1};
      t->labels.assign(36, s % 4);
      t->step(s);
    }
    EXPECT_LE(distance(gpu.gradients(), cpu.gradients()), 1e-3);
    EXPECT_LE(distance(gpu.weights(), cpu.weights()), 1e-4);
    const std::vector<NamedBuffer> left = cpu.network.carried_state(), on_gpu = gpu.network.carried_state();
    for (std::size_t i = 0; i < left.size(); ++i)
      EXPECT_LE(distance(on_host(on_gpu[i].values, gpu.network.stream()), left[i].values), 1e-4)
          << left[i].name;
  }
}

// What lies behind the end of a sequence is not read, also by layers that work on each frame.
TEST_F(NetworkGpu, WhatIsBehindTheEndIsIgnored) {
  const std::string text =
      "input: [4, 5]\nclasses: 3\nlayers: [{dense: d, units: 6}, tanh, {dense: fc, units: 3}]";
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute, device)) continue;
    Trained clean(text, {.batch = 2, .compute = compute, .device = device, .deterministic = true}),
        dirty(text, {.batch = 2, .compute = compute, .device = device, .deterministic = true});
    for (Trained* t : {&clean, &dirty}) {
      t->lengths = {2, 0};
      t->labels.assign(8, 1);
    }
    std::fill(dirty.inputs.begin() + 10, dirty.inputs.end(), std::nanf(""));
    for (int s = 0; s < 4; ++s) {
      for (Trained* t : {&clean, &dirty}) t->step(s);
      EXPECT_EQ(dirty.gradients(), clean.gradients());
    }
    EXPECT_EQ(dirty.network.take_metrics().loss, clean.network.take_metrics().loss);
  }
}

// Inputs, labels, lengths and steps of passes that the device has not come to yet stay what they were.
TEST_F(NetworkGpu, TheHostMayBeAhead) {
  const std::string dropped =
      "input: [6, 5]\nclasses: 4\nlayers: [{lstm: a, cell: 8}, {dropout: d, probability: 0.3}, {dense: fc, "
      "units: 4}]";
  const NetworkOptions options{.batch = 3, .device = device, .deterministic = true};
  Trained waits(dropped, options), ahead(dropped, options);
  for (int s = 0; s < 9; ++s)
    for (Trained* t : {&waits, &ahead}) {
      t->lengths = {1 + s % 6, 6 - s % 6, 1 + (3 * s + 2) % 6};
      t->labels.assign(18, s % 4);
      for (float& x : t->inputs) x = 0.9f * x + 0.1f * static_cast<float>(s % 3);
      t->step(s);
      if (t == &waits) t->network.stream().synchronize();
    }
  EXPECT_EQ(ahead.weights(), waits.weights());
  EXPECT_EQ(ahead.network.take_metrics().loss, waits.network.take_metrics().loss);
}

TEST_F(NetworkGpu, DeterministicRunsAreEqual) {
  const NetworkOptions options{.batch = 8, .device = device, .deterministic = true};
  Trained once(kinked, options), again(kinked, options);
  for (int s = 0; s < 4; ++s) {
    once.step(s);
    again.step(s);
  }
  EXPECT_EQ(once.weights(), again.weights());
}

TEST_F(NetworkGpu, OptimizerFollowsTheCpu) {
  for (const OptimizerOptions& options :
       {OptimizerOptions{.momentum = 0}, OptimizerOptions{.weight_decay = 0.01, .no_decay = {"norm", "bias"}},
        OptimizerOptions{.nesterov = true, .weight_decay = 0.1},
        OptimizerOptions{.momentum = 0.5, .weight_decay = 0.01, .clip_norm = 0.01},
        OptimizerOptions{.momentum_unit_gain = true, .weight_decay = 0.1},
        OptimizerOptions{.nesterov = true, .momentum_unit_gain = true}, OptimizerOptions{.clip_norm = 1e6},
        OptimizerOptions{.kind = OptimizerKind::adam, .weight_decay = 0.1, .no_decay = {"norm"}},
        OptimizerOptions{.kind = OptimizerKind::adamw, .weight_decay = 0.1, .clip_norm = 0.1, .eps = 0.01},
        OptimizerOptions{.kind = OptimizerKind::lars, .weight_decay = 0.1, .clip_norm = 0.1, .trust = 0.1},
        OptimizerOptions{.weight_decay = 0.1, .clip_norm = 0.1, .noise = 0.1}}) {
    const NetworkSpec spec(config::parse_text(smooth, "net.yaml"));
    Network cpu(spec, {.batch = 1});
    const Stream stream(device);  // no network there: for racecheck, which fails in libraries
    const std::size_t values = cpu.parameters().size();
    DeviceBuffer<float> weights(device, values), gradients(device, values);
    copy_values(weights.view(), cpu.parameters(), stream);
    Optimizer one(options, spec.tensors(), values);
    Optimizer two(options, spec.tensors(), values, stream);
    const bool adam = options.is_adam(), noisy = options.noise > 0;
    PhiloxSequence draw(4, RandomUse::dataset, 2);
    for (int s = 0; s < 4; ++s) {
      for (const TensorInfo& t : spec.tensors())
        for (std::int64_t i = 0; i < t.elements; ++i)
          cpu.gradients()[static_cast<std::size_t>(t.offset + i)] = draw.uniform() - 0.5f;
      copy_values(gradients.view(), cpu.gradients(), stream);
      for (Optimizer* each : {&one, &two}) {
        if (s == 2) each->set_momentum(0.3);
        if (s == 3) each->set_noise_rank(5);
        each->set_rate(0.1 / (1 + s), s);
      }
      one.step(cpu.parameters(), cpu.gradients());
      two.step(weights.view(), gradients.view());
      stream.synchronize();
    }
    const double bound = adam || noisy ? 1e-6 : 1e-7;  // roots, logarithms and sines may round otherwise
    EXPECT_LE(distance(on_host(weights.view(), stream), cpu.parameters()), bound);
    EXPECT_LE(distance(on_host(two.momentum(), stream), one.momentum()), bound);
    if (adam) {
      EXPECT_LE(distance(on_host(two.second_moment(), stream), one.second_moment()), bound);
    }
  }
}

TEST_F(NetworkGpu, ErrorsAreTold) {
  Trained gpu(smooth, {.batch = 2, .device = device});
  gpu.labels[1] = 7;
  EXPECT_THROW(gpu.network.forward_train({gpu.inputs, gpu.labels}, 0), Error);
  Trained words(
      "input: [5]\nclasses: 3\nlayers: [{embedding: e, vocabulary: 6, dimension: 8}, {lstm: l, cell: 8}, "
      "{dense: fc, units: 3}]",
      {.batch = 2, .device = device});
  words.labels.assign(10, 1);
  for (float& x : words.inputs) x = 2;
  words.step(0);
  EXPECT_EQ(words.network.take_metrics().samples, 10);
  words.inputs[3] = 6;
  words.step(1);
  EXPECT_THROW(words.network.take_metrics(), Error);
  EXPECT_NO_THROW(words.network.take_metrics());
  EXPECT_THROW(Network(gpu.spec, {.device = Device::cuda(1000)}), DeviceError);
  try {
    Network network(gpu.spec, {.batch = std::int64_t{1} << 28, .device = device});
    FAIL() << "no DeviceError";
  } catch (const DeviceError& e) {
    EXPECT_NE(std::string(e.what()).find("no room for"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("are free"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace lpsgd
