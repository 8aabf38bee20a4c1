// Passes on several branches of a CUDA graph: the same bits as one operation after the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/capture.h"
#include "core/error.h"
#include "nn/cuda/captured_pass.h"
#include "tests/core/gpu_test.h"
#include "tests/nn/trained_network.h"

namespace lpsgd {
namespace {

/// Towers that are joined, in place and by a copy, one of them with a residual; a dropout; and norms that the
/// convolution behind them may compute.
const std::string towers =
    "input: [6, 7, 6]\nclasses: 5\nlayers:\n"
    "  - {conv: c0, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n0}\n  - {relu: r0}\n"
    "  - {conv: a1, filters: 8, kernel: 1, input: r0}\n  - {batch_norm: an}\n  - {relu: ar}\n"
    "  - {conv: b1, filters: 16, kernel: 1, input: r0, bias: false}\n  - {batch_norm: bn1}\n  - {relu: br1}\n"
    "  - {conv: b2, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: bn2}\n  - {relu: br2}\n"
    "  - {conv: d1, filters: 4, kernel: 3, pad: 1, input: r0}\n  - {tanh: dt}\n"
    "  - {conv: d2, filters: 4, kernel: 1}\n  - {relu: dr}\n"
    "  - {max_pool: p1, kernel: 3, stride: 1, pad: 1, input: r0}\n  - {dropout: pd, probability: 0.3}\n"
    "  - {concat: j, input: [ar, br2, dr, pd]}\n"
    "  - {conv: e1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: en}\n"
    "  - {conv: e2, filters: 16, kernel: 1, input: j, bias: false}\n  - {batch_norm: e2n}\n"
    "  - {add: s, input: [en, e2n]}\n  - {relu: sr}\n"
    "  - average_pool\n  - flatten\n  - {dense: f1, units: 12}\n  - {relu: fr}\n  - {dense: f, units: 5}\n";

NetworkOptions options_of(Compute compute, Device device, Branches branches) {
  return {.batch = 4, .compute = compute, .device = device, .deterministic = true, .branches = branches};
}

void expect_equal(Trained& one, Trained& other) {
  EXPECT_EQ(one.gradients(), other.gradients());
  EXPECT_EQ(one.weights(), other.weights());
  for (std::size_t b = 0; b < one.network.buffers().size(); ++b)
    EXPECT_EQ(on_host(one.network.buffers()[b].values, one.network.stream()),
              on_host(other.network.buffers()[b].values, other.network.stream()));
}

/// `segments` announces its tensors. The third step captures the passes.
void expect_equal_steps(Trained& plain, Trained& always, Trained& segments) {
  for (int s = 0; s < 6; ++s) {
    SCOPED_TRACE(s);
    plain.step(s);
    always.step(s);
    segments.step(s, true);
    expect_equal(always, plain);
    expect_equal(segments, plain);
  }
}

using BranchesGpu = GpuTest;

class EveryArithmetic : public BranchesGpu, public ::testing::WithParamInterface<Compute> {};
INSTANTIATE_TEST_SUITE_P(BranchesGpu, EveryArithmetic,
                         ::testing::Values(Compute::fp32, Compute::tf32, Compute::bf16));

TEST_P(EveryArithmetic, GivesTheSameBits) {
  if (const auto why = unsupported(GetParam(), device)) GTEST_SKIP() << *why;
  for (const std::string& text : {towers, joinable}) {
    Trained plain(text, options_of(GetParam(), device, Branches::never));
    Trained always(text, options_of(GetParam(), device, Branches::always));
    Trained segments(text, options_of(GetParam(), device, Branches::always));
    EXPECT_EQ(plain.network.branches().backward, 1u);
    EXPECT_EQ(always.network.branches().forward > 1, text == towers);  // as many as the workspaces allow
    EXPECT_GT(always.network.branches().backward, 1u);
    const std::vector<std::size_t>& order = plain.network.announce_order();
    segments.network.announce_behind(std::vector{order[2], order[order.size() / 2]});
    expect_equal_steps(plain, always, segments);
    for (int e = 0; e < 4; ++e)
      for (Trained* t : {&plain, &always})
        t->network.forward_eval({.inputs = t->inputs, .labels = t->labels}, 3);
    EXPECT_TRUE(std::ranges::equal(always.network.logits(), plain.network.logits()));
  }
}

TEST_P(EveryArithmetic, MeasuresBothWaysAndKeepsOne) {
  if (const auto why = unsupported(GetParam(), device)) GTEST_SKIP() << *why;
  Trained plain(towers, options_of(GetParam(), device, Branches::never));
  Trained measured(towers, options_of(GetParam(), device, Branches::measured));
  ASSERT_EQ(measured.network.unsettled_steps(), uncaptured_runs + 1 + 2 * measured_runs);
  for (int s = 0; s < measured.network.unsettled_steps() + 3; ++s) {
    SCOPED_TRACE(s);
    plain.step(s);
    measured.step(s);
    EXPECT_EQ(measured.network.captured(), s < uncaptured_runs ? 0u : 2u);
    expect_equal(measured, plain);
  }
  EXPECT_THAT(measured.network.branches().times,
              ::testing::ElementsAre(::testing::ContainsRegex("^forward: .* ms, on branches .* ms"),
                                     ::testing::ContainsRegex("^backward: .* ms, on branches .* ms")));
}

// Whoever captures a larger graph behind so many steps relies on it. The host reads nothing of these steps,
// so it is as far ahead as it may be.
TEST_F(BranchesGpu, ItIsSettledBehindSoManySteps) {
  Trained ahead(towers, options_of(Compute::fp32, device, Branches::measured));
  for (int s = 0; s < ahead.network.unsettled_steps(); ++s) ahead.step(s);
  EXPECT_EQ(ahead.network.branches().times.size(), 2u);
}

TEST_F(BranchesGpu, MicroBatchesAndRecomputedOutputsAreTheSame) {
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute, device)) continue;
    NetworkOptions options = options_of(compute, device, Branches::never);
    options.batch = 2;
    options.micro_batches = 3;
    options.recompute = Recompute::batch_norm;
    Trained plain(towers, options);
    options.branches = Branches::always;
    Trained always(towers, options), segments(towers, options);
    segments.network.announce_behind(std::vector{plain.network.announce_order()[3]});
    expect_equal_steps(plain, always, segments);
  }
}

// In a larger graph backward is one part on branches, whose gradients are announced when they are final: what
// waits for an event of announcing_stream() copies them beside the rest of backward.
TEST_P(EveryArithmetic, ALargerGraphAnnouncesFinalGradients) {
  if (const auto why = unsupported(GetParam(), device)) GTEST_SKIP() << *why;
  for (const std::int64_t micro_batches : {1, 2}) {
    NetworkOptions options = options_of(GetParam(), device, Branches::never);
    options.micro_batches = micro_batches;
    Trained plain(towers, options);
    options.branches = Branches::always;
    Trained larger(towers, options);
    const std::vector<std::size_t>& order = plain.network.announce_order();
    larger.network.announce_behind(std::vector{order[1], order[2], order[order.size() / 2]});
    const Stream other(device);
    Event announced(device), copied(device);
    DeviceBuffer<float> copy(device, plain.network.gradients().size());
    CapturedGraph graph;
    for (int s = 0; s < 7; ++s) {
      SCOPED_TRACE(s);
      plain.step(s);
      if (s < 3) {  // the network's own passes are captured
        larger.step(s, true);
        continue;
      }
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        larger.network.forward_train({.inputs = larger.part(larger.inputs, m),
                                      .labels = larger.part(larger.labels, m),
                                      .micro_batch = m},
                                     s);
        if (m + 1 < micro_batches) larger.network.backward({});
      }
      larger.announced.clear();
      graph.capture(larger.network.stream(), [&] {
        larger.network.backward([&](std::size_t t) {
          larger.announced.push_back(t);
          const TensorInfo& info = larger.network.tensors()[t];
          const auto at = static_cast<std::size_t>(info.offset), n = static_cast<std::size_t>(info.elements);
          EXPECT_NE(larger.network.announcing_stream().handle(), larger.network.stream().handle());
          announced.record(larger.network.announcing_stream());
          other.wait(announced);
          copy_values(copy.view().subspan(at, n), larger.network.gradients().subspan(at, n), other);
        });
        copied.record(other);
        larger.network.stream().wait(copied);
      });
      graph.launch(larger.network.stream());
      EXPECT_EQ(larger.announced, order);
      EXPECT_EQ(larger.network.announcing_stream().handle(), larger.network.stream().handle());
      const std::vector<float> expected = plain.gradients(),
                               found = on_host(std::as_const(copy).view(), larger.network.stream());
      for (const TensorInfo& t : plain.network.tensors())
        for (std::int64_t i = t.offset; i < t.offset + t.elements; ++i)
          ASSERT_EQ(found[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)]) << t.name;
      larger.optimizer.step(larger.network.parameters(), larger.network.gradients());
      expect_equal(larger, plain);
    }
  }
}

// A pass that cannot be captured on branches is captured without them, and in a larger graph has none.
TEST_F(BranchesGpu, APassThatCannotBranchDoesNot) {
  for (const bool measures : {true, false}) {
    const Stream stream(device);
    int plain = 0, branching = 0;
    const auto pass = [&] { ++plain; };
    const auto on_branches = [&] {
      ++branching;
      throw DeviceError("no");
    };
    cuda::CapturedPass captured;
    for (int run = 0; run < uncaptured_runs + 3; ++run)
      captured.run(stream, "a pass", pass, on_branches, measures);
    EXPECT_TRUE(captured.is_captured());
    EXPECT_FALSE(captured.can_branch());
    EXPECT_FALSE(captured.comparison());
    EXPECT_EQ(plain, uncaptured_runs + 1);
    EXPECT_EQ(branching, 1);
    CapturedGraph graph;
    graph.capture(stream, [&] { captured.run(stream, "a pass", pass, on_branches, measures); });
    EXPECT_EQ(plain, uncaptured_runs + 2);
    EXPECT_EQ(branching, 1);
  }
}

// Both layers of a shared weight write its gradient, one behind the other.
TEST_F(BranchesGpu, SharedWeightsAreTheSame) {
  const std::string begin =
      "input: [6]\nclasses: 11\nlayers: [{embedding: e, vocabulary: 11, dimension: 8}, ";
  const std::string few = begin + "{dense: fc, units: 11, weight_of: e}]\n";
  const std::string more =
      begin +
      "{dense: q, units: 8}, {dense: p, units: 8, input: e}, {multiply: w, input: [p, q]}, "
      "{add: t, input: [w, e, q, p]}, tanh, {dense: fc, units: 11, weight_of: e}]\n";
  for (const auto& [text, compute] :
       {std::pair{few, Compute::fp32}, {few, Compute::bf16}, {more, Compute::fp32}}) {
    if (unsupported(compute, device)) continue;
    Trained plain(text, options_of(compute, device, Branches::never));
    Trained always(text, options_of(compute, device, Branches::always));
    for (int s = 0; s < 5; ++s) {
      SCOPED_TRACE(s);
      for (Trained* t : {&plain, &always}) {
        for (std::size_t i = 0; i < t->inputs.size(); ++i)
          t->inputs[i] = static_cast<float>((3 * i + i / 7) % 11);
        t->labels.assign(24, s);
        t->step(s);
      }
      expect_equal(always, plain);
    }
  }
}

// Operations that share memory beyond the workspace stay in one order, also where they are independent;
// lengths change from step to step.
TEST_F(BranchesGpu, SequencesAreTheSame) {
  const std::string text =
      "input: [6, 5]\nclasses: 4\nlayers: [{dense: d, units: 24}, {attention: a, heads: 2, input: d}, "
      "{dense: e, units: 24, input: d}, {attention: b, heads: 2, input: e}, {lstm: l, cell: 8, input: d}, "
      "{add: s, input: [a, b, l]}, {layer_norm: n}, {dense: f, units: 4}]\n";
  Trained plain(text, options_of(Compute::fp32, device, Branches::never));
  Trained always(text, options_of(Compute::fp32, device, Branches::always));
  for (int s = 0; s < 5; ++s) {
    SCOPED_TRACE(s);
    for (Trained* t : {&plain, &always}) {
      t->lengths.assign(4, 6 - s);
      t->labels.assign(24, s % 4);
      t->step(s);
    }
    expect_equal(always, plain);
  }
}

}  // namespace
}  // namespace lpsgd
