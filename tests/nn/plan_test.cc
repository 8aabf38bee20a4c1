// The plan: what is fused, recomputed and announced, and where buffers are placed.
#include "nn/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "nn/offset_allocator.h"
#include "tests/nn/recompute_cases.h"

namespace lpsgd {
namespace {

Graph graph_of(const std::string& layers) {
  return read_graph(config::parse_text("input: [8, 8, 4]\nclasses: 4\nlayers:\n" + layers, "net.yaml"));
}

const std::string tail = "  - average_pool\n  - flatten\n  - {dense: fc, units: 4}\n";

TEST(OffsetAllocator, ReusesAndJoinsHoles) {
  OffsetAllocator a;
  for (const std::int64_t bytes : {40, 80, 64}) a.allocate(bytes);
  a.release(0);
  a.release(1);
  a.allocate(160);  // where the first two were, 192 bytes together
  const std::size_t one = a.allocate(1);
  a.release(one);
  a.allocate(256);  // larger than the hole at the end, which grows
  const OffsetAllocator::Layout layout = a.layout();
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{0, 64, 192, 0, 256, 256}));
  EXPECT_EQ(layout.bytes, 512);
}

TEST(OffsetAllocator, ABufferThatIsUsedAgainHasItsPlaceFreeBothTimes) {
  OffsetAllocator a;
  const std::size_t twice = a.allocate(64), first = a.allocate(64);
  a.release(twice);
  const std::size_t between = a.allocate(64);  // may lie where `twice` is not in use
  a.release(between);
  const std::size_t until_then = a.allocate(64);
  a.use_again(twice);
  EXPECT_THROW(a.use_again(first), Error);
  const OffsetAllocator::Layout layout = a.layout();
  EXPECT_EQ(layout.offsets[twice], layout.offsets[between]);
  for (const std::size_t other : {first, until_then}) EXPECT_NE(layout.offsets[twice], layout.offsets[other]);
  EXPECT_NE(layout.offsets[first], layout.offsets[until_then]);
  EXPECT_EQ(layout.bytes, 192);
}

// In the order of time the small one lies where the large one then does not fit.
TEST(OffsetAllocator, PlacesTheLargestFirstWhereThatTakesLess) {
  OffsetAllocator a;
  const std::size_t early = a.allocate(64);
  const std::size_t small = a.allocate(64);
  a.release(early);
  const std::size_t large = a.allocate(192);
  a.release(small);
  a.allocate(64);
  a.release(large);
  EXPECT_EQ(a.layout().bytes, 256);
}

TEST(Plan, FusesNormSumAndRelu) {
  const Plan plan = make_plan(graph_of("  - {conv: c1, filters: 4, kernel: 1}\n  - {batch_norm: b1}\n"
                                       "  - {add: a, input: [b1, in]}\n  - {relu: r}\n" +
                                       tail),
                              true);
  ASSERT_EQ(plan.steps.size(), 4u);  // conv, norm + sum + relu, pool, dense; flatten is a view
  EXPECT_TRUE(plan.steps[1].relu);
  EXPECT_EQ(plan.steps[1].residual, 0u);
  EXPECT_TRUE(plan.steps[1].masked.has_value());
}

TEST(Plan, DoesNotFuseWhatOthersRead) {
  const Plan plan =
      make_plan(graph_of("  - {conv: c1, filters: 4, kernel: 1}\n  - {batch_norm: b1}\n  - {relu: r}\n"
                         "  - {add: a, input: [b1, r]}\n" +
                         tail),
                true);
  ASSERT_EQ(plan.steps.size(), 6u);
  EXPECT_FALSE(plan.steps[1].relu);
}

TEST(Plan, ReluWorksInPlaceUnlessItsInputIsKept) {
  const Plan plain = make_plan(graph_of("  - {max_pool: p, kernel: 1}\n  - {relu: r}\n" + tail), true);
  EXPECT_EQ(plain.values[1].offset, plain.values[2].offset);
  const Plan kept = make_plan(
      graph_of("  - {conv: c1, filters: 4, kernel: 1}\n  - {tanh: t}\n  - {relu: r}\n" + tail), true);
  EXPECT_NE(kept.values[2].offset, kept.values[3].offset);
}

TEST(Plan, ScaledScoresTakeOnePass) {
  const Plan plan = make_plan(graph_of(tail + "  - {scale: s, factor: 0.125}\n"), true);
  const PlanStep &dense = plan.steps[plan.steps.size() - 2], &scale = plan.steps.back();
  EXPECT_EQ(plan.values[dense.output].offset, plan.values[scale.output].offset);  // in place
  ASSERT_EQ(scale.output_gradients.size(), 1u);
  EXPECT_FALSE(scale.sum_into || scale.masked);
  EXPECT_EQ(scale.input_gradients[0], scale.output_gradients[0]);
}

TEST(Plan, ConvolutionTakesTheReluAndItsMask) {
  const Plan plan = make_plan(
      graph_of(
          "  - {conv: c1, filters: 4, kernel: 1}\n  - {relu: r}\n  - {conv: c2, filters: 4, kernel: 1}\n" +
          tail),
      true);
  ASSERT_EQ(plan.steps.size(), 4u);
  EXPECT_TRUE(plan.steps[0].relu);
  EXPECT_TRUE(plan.steps[0].sum_into.has_value());
  EXPECT_FALSE(plan.steps[1].sum_into.has_value());
}

// What others read, too, what is no layer's own memory, and what a convolution writes are copied.
TEST(Plan, ConcatenationsAreWrittenInPlace) {
  const Graph graph = graph_of(
      "  - {conv: c1, filters: 6, kernel: 1}\n  - {batch_norm: b1}\n  - {relu: r1}\n"
      "  - {conv: c2, input: in, filters: 2, kernel: 1}\n"
      "  - {max_pool: p, input: in, kernel: 3, stride: 1, pad: 1}\n"
      "  - {batch_norm: b2, input: in}\n"
      "  - {batch_norm: b3, input: in}\n  - {add: a, input: [b3, in]}\n"
      "  - {concat: j, input: [r1, c2, p, b2, a]}\n"
      "  - {conv: c3, input: j, filters: 4, kernel: 1}\n  - {conv: c4, input: j, filters: 4, kernel: 1}\n"
      "  - {add: s, input: [c3, c4, b2]}\n" +
      tail);
  const auto node = [&](const std::string& name) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n)
      if (graph.nodes[n].name == name) return n;
    ADD_FAILURE() << "no layer " << name;
    return std::size_t{0};
  };
  const Plan plan = make_plan(graph, true);
  const Plan::MemoryRange& all = plan.values[node("j")];
  EXPECT_EQ(all.stride, 0);
  EXPECT_EQ(all.elements, 64 * (6 + 2 + 4 + 4 + 4));
  const auto expect_columns = [&](const Plan::MemoryRange& p, const Plan::MemoryRange& of, std::int64_t width,
                                  std::int64_t column) {
    EXPECT_EQ(p.offset, of.offset);
    EXPECT_EQ(p.elements, 64 * width);
    EXPECT_EQ(p.width, width);
    EXPECT_EQ(p.stride, 20);
    EXPECT_EQ(p.column, column);
  };
  expect_columns(plan.values[node("r1")], all, 6, 0);
  expect_columns(plan.values[node("p")], all, 4, 8);
  for (const char* name : {"c2", "b2", "a"}) EXPECT_EQ(plan.values[node(name)].stride, 0) << name;
  for (const PlanStep& step : plan.steps) {
    if (step.output == node("r1")) {
      ASSERT_EQ(step.output_gradients.size(), 1u);
      EXPECT_EQ(plan.gradients[step.output_gradients[0]].column, 0);
    }
    if (step.output != node("j")) continue;
    ASSERT_TRUE(step.sum_into.has_value());
    expect_columns(plan.gradients[step.input_gradients[0].value()], plan.gradients[*step.sum_into], 6, 0);
    EXPECT_EQ(plan.gradients[step.input_gradients[1].value()].stride, 0);
    EXPECT_FALSE(step.input_gradients[2].has_value());  // the pool reads the network's input
  }
}

TEST(Plan, NormsThatForwardDoesNotKeepAreRecomputedOnce) {
  const Graph graph = read_graph(config::parse_text(recompute_network, "net.yaml"));
  const auto recomputed = [&](const Plan& plan) {
    std::multiset<std::string> out;
    for (const PlanStep& step : plan.steps)
      for (const std::size_t r : step.recomputed) out.insert(graph.nodes[plan.steps[r].node].name);
    return out;
  };
  EXPECT_TRUE(recomputed(make_plan(graph, true)).empty());
  EXPECT_TRUE(recomputed(make_plan(graph, false, DataType::f32, Recompute::batch_norm)).empty());
  // Not n0 and n6, which backward does not need: a pooling and a tanh behind them do not read them again. Not
  // m7, whose input is recomputed.
  EXPECT_EQ(recomputed(make_plan(graph, true, DataType::f32, Recompute::batch_norm)),
            (std::multiset<std::string>{"n1", "n2", "n3", "n4", "n5", "n7", "n10", "u1"}));
}

TEST(Plan, AnOnlyReaderMayComputeWhatItReads) {
  const auto only_readers = [](const std::string& layers, Recompute recompute = Recompute::none) {
    const Graph graph = graph_of("  - {conv: c, filters: 4, kernel: 3, pad: 1}\n" + layers + tail);
    std::vector<std::string> out;
    for (const PlanStep& step : make_plan(graph, true, DataType::f32, recompute).steps)
      if (graph.nodes[step.node].kind == std::string("batch_norm") && step.has_one_reader)
        out.push_back(graph.nodes[step.node].name);
    return out;
  };
  using Names = std::vector<std::string>;
  const std::string norm = "  - {batch_norm: b}\n", relu = "  - {relu: r}\n";
  const std::string conv = "  - {conv: d, filters: 4, kernel: 3, pad: 1}\n";
  EXPECT_EQ(only_readers(norm + conv), Names{"b"});
  EXPECT_EQ(only_readers(norm + relu + conv), Names{"b"});
  EXPECT_EQ(only_readers(norm + conv, Recompute::batch_norm), Names{"b"});
  EXPECT_EQ(only_readers(norm + conv + "  - {add: s, input: [d, b]}\n"), Names{});
  EXPECT_EQ(only_readers(norm + "  - {conv: e, filters: 4, kernel: 1}\n  - {conv: d, input: b, filters: 4, "
                                "kernel: 1}\n  - {add: s, input: [d, e]}\n"),
            Names{});
  EXPECT_EQ(only_readers(norm + "  - {concat: s, input: [b, c]}\n"), Names{});
  // The first norm's output is what the second one reads, and may not be kept.
  const std::string second = "  - {batch_norm: b2}\n";
  EXPECT_EQ(only_readers(norm + second + conv), (Names{"b", "b2"}));
  EXPECT_EQ(only_readers(norm + second + conv, Recompute::batch_norm), Names{"b"});
  const Graph graph = graph_of("  - {conv: c, filters: 4, kernel: 3, pad: 1}\n" + norm + conv + tail);
  for (const PlanStep& step : make_plan(graph, false).steps) EXPECT_FALSE(step.has_one_reader);
}

TEST(Plan, RecomputationTakesLessMemory) {
  const auto share = [](const std::string& file) {
    const Graph graph =
        read_graph(config::parse_file(LPSGD_SOURCE_DIR "/configs/networks/" + file + ".yaml"));
    return static_cast<double>(make_plan(graph, true, DataType::bf16, Recompute::batch_norm).arena) /
           static_cast<double>(make_plan(graph, true, DataType::bf16).arena);
  };
  EXPECT_LT(share("resnet50"), 0.75);
  EXPECT_LT(share("bn_inception"), 0.75);
  EXPECT_LT(share("densenet40_12"), 0.55);
}

TEST(Plan, ANormsMaskComesFromItsInputWhereOneGradientArrives) {
  const auto masks_by_output = [](const std::string& behind) {
    const Graph graph =
        graph_of("  - {conv: c, filters: 4, kernel: 3, pad: 1}\n  - {batch_norm: b}\n" + behind + tail);
    for (const PlanStep& step : make_plan(graph, true).steps)
      if (graph.nodes[step.node].name == "b") return step.masks_by_output;
    ADD_FAILURE() << "no norm";
    return false;
  };
  const std::string relu = "  - {relu: r}\n";
  EXPECT_FALSE(masks_by_output(""));
  EXPECT_FALSE(masks_by_output(relu));
  EXPECT_FALSE(masks_by_output(relu + "  - {max_pool: p, kernel: 2}\n"));
  EXPECT_TRUE(masks_by_output("  - {add: s, input: [b, in]}\n" + relu));                // a residual
  EXPECT_TRUE(masks_by_output(relu + "  - {tanh: t}\n  - {add: s, input: [t, r]}\n"));  // two readers
  EXPECT_TRUE(masks_by_output(relu + "  - {add: s, input: [r, r]}\n"));
  // A sum that nothing is fused into hands on as many gradients as it gets.
  EXPECT_TRUE(
      masks_by_output(relu + "  - {add: s, input: [r, in]}\n  - {tanh: t}\n  - {add: u, input: [s, t]}\n"));
}

TEST(Plan, NormsJoinTheConvolutionsOfSinglePixelsBeforeThem) {
  const auto joined = [](const std::string& layers) {
    std::vector<std::string> out;
    const Graph graph = graph_of(layers + tail);
    for (const PlanStep& step : make_plan(graph, true).steps)
      if (step.rowwise_backward) out.push_back(graph.nodes[step.node].name);
    return out;
  };
  using Names = std::vector<std::string>;
  const std::string norm = "  - {batch_norm: b}\n";
  const std::string before = "  - {conv: a, filters: 4, kernel: 3, pad: 1}\n";
  EXPECT_EQ(joined("  - {conv: c, filters: 4, kernel: 1, bias: false}\n" + norm), Names{"b"});
  EXPECT_EQ(joined("  - {conv: c, filters: 4, kernel: 1}\n" + norm), Names{});
  EXPECT_EQ(joined("  - {conv: c, filters: 4, kernel: 3, pad: 1, bias: false}\n" + norm), Names{});
  EXPECT_EQ(joined("  - {conv: c, filters: 4, kernel: 1, stride: 2, bias: false}\n" + norm), Names{});
  EXPECT_EQ(joined("  - {conv: c, filters: 4, kernel: 1, bias: false}\n  - {relu: r}\n" + norm), Names{});
  EXPECT_EQ(
      joined("  - {conv: c, filters: 4, kernel: 1, bias: false}\n" + norm + "  - {add: s, input: [b, c]}\n"),
      Names{});
  // Others read a view of what the norm reads.
  const std::string viewed =
      "  - average_pool\n  - {conv: c, filters: 4, kernel: 1, bias: false}\n  - {flatten: f}\n  - "
      "{batch_norm: b}\n";
  for (const std::string& reader :
       {std::string("  - {add: s, input: [b, f]}\n"),
        std::string("  - {dense: d, input: f, units: 4}\n  - {add: s, input: [b, d]}\n")}) {
    const Graph graph = read_graph(config::parse_text(
        "input: [4, 4, 4]\nclasses: 3\nlayers:\n" + viewed + reader + "  - {dense: fc, units: 3}\n",
        "net.yaml"));
    std::vector<bool> written(graph.nodes.size());
    written[0] = true;
    for (const PlanStep& step : make_plan(graph, true).steps) {
      EXPECT_FALSE(step.rowwise_backward);
      for (const std::size_t v : step.inputs) EXPECT_TRUE(written[v]) << reader;
      written[step.output] = true;
    }
  }
  // The shortcut stands between the two in the file; a fused sum takes the convolution along.
  EXPECT_EQ(joined(before + "  - {conv: c, filters: 4, kernel: 1, bias: false}\n" + norm +
                   "  - {conv: d, input: a, filters: 4, kernel: 1}\n  - {add: s, input: [b, d]}\n"),
            Names{"b"});
}

TEST(Plan, InferenceNeedsLessMemory) {
  std::string deep;
  for (int i = 0; i < 20; ++i) deep += "  - {conv: c" + std::to_string(i) + ", filters: 4, kernel: 1}\n";
  const Graph graph = graph_of(deep + tail);
  EXPECT_LE(make_plan(graph, false).arena, 4 * (3 * 256 + 64));
  EXPECT_GE(make_plan(graph, true).arena, 4 * 21 * 256);
}

TEST(Plan, Bfloat16HalvesTheMemoryButTokensStayFloat32) {
  const Graph images = read_graph(config::parse_file(LPSGD_SOURCE_DIR "/configs/networks/resnet20.yaml"));
  const Plan plain = make_plan(images, true), half = make_plan(images, true, DataType::bf16);
  EXPECT_NEAR(static_cast<double>(half.arena), 0.5 * static_cast<double>(plain.arena),
              0.01 * static_cast<double>(plain.arena));
  for (const PlanStep& step : half.steps) EXPECT_EQ(half.values[step.output].type, DataType::bf16);
  for (const Plan::MemoryRange& p : half.gradients) EXPECT_EQ(p.type, DataType::bf16);

  const auto sequence = [](const std::string& layers) {
    return read_graph(config::parse_text("input: [5]\nclasses: 3\nlayers:\n" + layers, "net.yaml"));
  };
  const std::string embedding = "  - {embedding: e, vocabulary: 600, dimension: 5}\n";
  const Graph words = sequence(embedding + "  - {dense: fc, units: 3}\n");
  const Plan plan = make_plan(words, true, DataType::bf16);
  EXPECT_EQ(plan.values[0].type, DataType::f32);
  EXPECT_EQ(plan.values[0].bytes(), 20);
  EXPECT_EQ(plan.values[1].type, DataType::bf16);

  const auto refused = [&](const std::string& layers, const std::string& where) {
    const Graph graph = sequence(layers + "  - {dense: fc, units: 3}\n");
    EXPECT_NO_THROW(make_plan(graph, true));
    try {
      make_plan(graph, true, DataType::bf16);
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& e) {
      EXPECT_EQ(std::string(e.what()),
                where + ": with compute: bf16 only an embedding may read or write token numbers");
    }
  };
  refused(
      embedding + "  - flatten\n  - {dense: d, input: in, units: 4}\n  - {concat: c, input: [flatten, d]}\n",
      "net.yaml:6:5: layer 'd'");
}

/// Their output's gradient is the input's, in the same memory.
TEST(Plan, FixedPositionsHaveNoBackward) {
  const Plan plan = make_plan(
      read_graph(config::parse_text("input: [5, 4]\nclasses: 3\nlayers: [{dense: d, units: 8}, {position: p, "
                                    "frames: 5, trained: false}, {dense: fc, units: 3}]",
                                    "net.yaml")),
      true);
  ASSERT_EQ(plan.steps.size(), 3u);
  EXPECT_FALSE(plan.steps[1].has_backward);
  EXPECT_EQ(plan.steps[0].output_gradients[0], *plan.steps[2].input_gradients[0]);
}

/// Terms of the gradient would double with each of them.
TEST(Plan, SumsOfSumsHaveFewTerms) {
  std::string layers = "  - {conv: c0, filters: 4, kernel: 1}\n";
  for (int i = 1; i < 200; ++i) layers += fmt::format("  - {{add: c{0}, input: [c{1}, c{1}]}}\n", i, i - 1);
  const Plan plan = make_plan(graph_of(layers + tail), true);
  for (const PlanStep& step : plan.steps) EXPECT_LE(step.output_gradients.size(), 16u);
}

TEST(Plan, AnnouncesEveryTensorOnceAndLastLayersFirst) {
  const Graph graph = read_graph(config::parse_file(LPSGD_SOURCE_DIR "/configs/networks/resnet20.yaml"));
  const Plan plan = make_plan(graph, true);
  EXPECT_EQ(plan.announce_order.size(), graph.tensors.size());
  EXPECT_EQ(std::set<std::size_t>(plan.announce_order.begin(), plan.announce_order.end()).size(),
            graph.tensors.size());
  EXPECT_EQ(graph.tensors[plan.announce_order.front()].name, "fc.weight");
  EXPECT_EQ(graph.tensors[plan.announce_order.back()].name, "conv1.weight");
  for (const PlanStep& step : plan.steps) {
    EXPECT_FALSE(step.sum_into.has_value()) << "no pass is spent on adding gradients alone";
  }
}

}  // namespace
}  // namespace lpsgd
