// The plan: what is fused, and that no memory is used twice at one time.
#include "nn/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

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

/// What each part of a sample's memory holds: values, by their number, and gradients.
class Memory {
 public:
  explicit Memory(const Plan& plan) : plan_(plan), holds_(static_cast<std::size_t>(plan.arena / grain), -1) {
    for (const PlanStep& step : plan.steps)
      for (std::size_t i = 0; i < step.inputs.size(); ++i) {
        if (plan.values[step.inputs[i]].stride != 0) whole_[step.inputs[i]] = static_cast<int>(step.output);
        if (i >= step.input_gradients.size() || !step.input_gradients[i]) continue;
        if (plan.gradients[*step.input_gradients[i]].stride != 0)
          whole_[first_gradient + *step.input_gradients[i]] =
              static_cast<int>(first_gradient + step.sum_into.value_or(step.output_gradients[0]));
      }
  }
  void write_value(std::size_t v) {
    each(plan_.values[v], [&](int& holds) { holds = number(v); });
  }
  void write_gradient(std::size_t g) {
    each(plan_.gradients[g], [&](int& holds) { holds = number(first_gradient + g); });
  }
  bool has_value(std::size_t v) { return has(plan_.values[v], number(v)); }
  bool has_gradient(std::size_t g) { return has(plan_.gradients[g], number(first_gradient + g)); }

 private:
  static constexpr std::int64_t grain = 2;  // bytes of the smallest value
  static constexpr std::size_t first_gradient = 1 << 20;

  /// Columns hold a part of what the whole array does.
  int number(std::size_t v) const {
    const auto at = whole_.find(v);
    return at != whole_.end() ? at->second : static_cast<int>(v);
  }
  bool has(const Plan::MemoryRange& p, int owner) {
    bool all = true;
    each(p, [&](int holds) { all = all && holds == owner; });
    return all;
  }
  template <class Body>
  void each(const Plan::MemoryRange& p, const Body& body) {
    const std::int64_t words = size_of(p.type) / grain;
    const auto each_of_row = [&](std::int64_t first, std::int64_t values) {
      const std::int64_t at = p.offset / grain + first * words;
      for (std::int64_t i = at; i < at + values * words; ++i) body(holds_[static_cast<std::size_t>(i)]);
    };
    if (p.stride == 0) return each_of_row(0, p.elements);
    for (std::int64_t row = 0; row < p.elements / p.width; ++row)
      each_of_row(row * p.stride + p.column, p.width);
  }

  const Plan& plan_;
  std::vector<int> holds_;
  std::map<std::size_t, int> whole_;
};

const std::string group_network =
    "input: [16, 16, 3]\nclasses: 5\nlayers:\n"
    "  - {conv: c0, filters: 8, kernel: 3}\n  - {group_norm: n0, groups: 2}\n  - {relu: r0}\n"
    "  - {max_pool: p0, kernel: 2}\n  - {conv: c1, filters: 8, kernel: 1}\n  - {group_norm: n1, groups: 4}\n"
    "  - {relu: r1}\n  - {conv: c2, filters: 8, kernel: 1}\n  - {group_norm: n2, groups: 8}\n  - {relu: r2}\n"
    "  - {add: s, input: [r2, r1]}\n  - {relu: r3}\n  - {conv: c3, filters: 8, kernel: 3}\n"
    "  - {group_norm: n3, groups: 1}\n  - {relu: r4}\n  - flatten\n  - {dense: fc, units: 5}\n";

Graph graph_named(const std::string& name) {
  if (name == "recompute") return read_graph(config::parse_text(recompute_network, "net.yaml"));
  if (name == "groups") return read_graph(config::parse_text(group_network, "net.yaml"));
  return read_graph(config::parse_file(LPSGD_SOURCE_DIR "/configs/networks/" + name + ".yaml"));
}

/// Checks the memory of values and gradients by running through the passes: no step writes to memory that is
/// still to be read, and every read finds what was written last.
void check_memory(const std::string& file, const Graph& graph, const Plan& plan, Recompute recompute) {
  Memory memory(plan);
  const auto value = [&](std::size_t v, const std::string& reader) {
    EXPECT_TRUE(memory.has_value(v)) << file << ": " << reader << " reads value " << v << ": overwritten";
  };
  const auto gradient = [&](std::size_t g, const std::string& reader) {
    EXPECT_TRUE(memory.has_gradient(g))
        << file << ": " << reader << " reads gradient " << g << ": overwritten";
  };
  // A step that may compute its input itself reads its source's instead.
  const auto value_of_source = [&](const PlanStep& step, const std::string& reader) {
    for (const PlanStep& source : plan.steps)
      if (source.output == step.inputs[0] && source.has_one_reader)
        value(source.inputs[0], reader + ", computing what " + graph.nodes[source.node].name + " would,");
  };
  memory.write_value(0);
  for (const PlanStep& step : plan.steps) {
    const std::string& name = graph.nodes[step.node].name;
    for (const std::size_t v : step.inputs) value(v, name);
    value_of_source(step, name);
    if (step.residual) value(*step.residual, name);
    memory.write_value(step.output);
  }
  const std::size_t scores = plan.value_of.back();
  value(scores, "the loss");
  memory.write_gradient(0);
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    if (!step->has_backward) continue;
    const Layer& layer = *graph.nodes[step->node].layer;
    const std::string name = graph.nodes[step->node].name + " backward";
    for (const std::size_t r : step->recomputed) {
      EXPECT_EQ(recompute, Recompute::batch_norm);
      const PlanStep& again = plan.steps[r];
      for (const std::size_t v : again.inputs) value(v, "the second " + graph.nodes[again.node].name);
      if (again.residual) value(*again.residual, "the second " + graph.nodes[again.node].name);
      memory.write_value(again.output);
    }
    if (step->rowwise_backward)
      for (const std::size_t v : (step + 1)->inputs) value(v, "the convolution joined with " + name);
    for (const std::size_t g : step->output_gradients) gradient(g, name);
    // A norm computes its ReLU's mask from the input, unless its gradient was masked by the output.
    const std::string kind = graph.nodes[step->node].kind;
    const bool masks_by_input =
        (kind == "batch_norm" && !step->masked) || (kind == "group_norm" && !step->masks_by_output);
    if ((step->relu && !masks_by_input) || layer.backward_reads_output()) value(step->output, name);
    if (layer.backward_reads_input())
      for (const std::size_t v : step->inputs) value(v, name);
    value_of_source(*step, name);
    // Gradients may lie over those they are computed from, but over nothing else that is read.
    if (step->sum_into) memory.write_gradient(*step->sum_into);
    if (step->masked) memory.write_gradient(*step->masked);
    for (const auto& g : step->input_gradients)
      if (g) memory.write_gradient(*g);
    if (layer.backward_reads_input())
      for (const std::size_t v : step->inputs) value(v, name + " at its end");
    value_of_source(*step, name + " at its end");
    // The next step's backward may end with this one's, and read until then.
    if (step == plan.steps.rbegin() || !(step - 1)->rowwise_backward) continue;
    const PlanStep& joined = *(step - 1);
    const std::string both = graph.nodes[joined.node].name + " joined with " + name;
    value(joined.inputs[0], both);
    const std::size_t read = joined.masked.value_or(joined.output_gradients[0]);
    // The input's gradient, which it then hands over instead, may lie over it.
    const bool over = plan.gradients[read].offset == plan.gradients[*joined.input_gradients[0]].offset;
    gradient(over ? *joined.input_gradients[0] : read, both);
  }
  value(scores, "the caller");
}
class PlanMemory : public testing::TestWithParam<std::tuple<const char*, Recompute>> {
 protected:
  const std::string file{std::get<0>(GetParam())};
  const Recompute recompute = std::get<1>(GetParam());
  const Graph graph = graph_named(file);
  const DataType type = file == "alexnet" ? DataType::f32 : DataType::bf16;
};

TEST_P(PlanMemory, IsNotUsedTwiceAtOneTime) {
  check_memory(file, graph, make_plan(graph, true, type, recompute), recompute);
  check_memory(file, graph, make_plan(graph, true, type, recompute, 3), recompute);
  check_memory(file, graph, make_branching_plan(graph, type, recompute), recompute);
}

TEST_P(PlanMemory, BranchesTakeLittleMore) {
  const std::int64_t least = make_plan(graph, true, type, recompute).arena;
  EXPECT_LE(make_branching_plan(graph, type, recompute).arena, least + least / 64);
  EXPECT_GT(make_plan(graph, true, type, recompute, 100).arena, least);
}

INSTANTIATE_TEST_SUITE_P(Networks, PlanMemory,
                         testing::Combine(testing::Values("resnet20", "resnet50", "densenet40_12",
                                                          "bn_inception", "alexnet", "lstm_wikitext2",
                                                          "recompute", "groups"),
                                          testing::Values(Recompute::none, Recompute::batch_norm)));

/// For how many steps of backward what a convolution has read keeps its place at least.
std::size_t steps_kept(const Plan& plan, const Graph& graph) {
  std::size_t least = plan.steps.size();
  Memory memory(plan);
  for (std::size_t s = plan.steps.size(); s-- > 0;) {
    const PlanStep& conv = plan.steps[s];
    const std::string kind = graph.nodes[conv.node].kind;
    if (!conv.has_backward || kind != "conv" || conv.inputs[0] == 0) continue;
    memory.write_value(conv.inputs[0]);
    memory.write_gradient(conv.output_gradients[0]);
    for (std::size_t next = s; next-- > 0;) {
      const PlanStep& step = plan.steps[next];
      if (step.sum_into) memory.write_gradient(*step.sum_into);
      if (step.masked) memory.write_gradient(*step.masked);
      for (const auto& g : step.input_gradients)
        if (g) memory.write_gradient(*g);
      if (memory.has_value(conv.inputs[0]) && memory.has_gradient(conv.output_gradients[0])) continue;
      least = std::min(least, s - next - 1);
      break;
    }
  }
  return least;
}

TEST(Plan, MemoryIsUsedAgainAfterADelay) {
  const Graph graph = graph_named("resnet20");
  EXPECT_EQ(steps_kept(make_plan(graph, true), graph), 0u);
  for (const std::size_t delay : {1, 2, 5})
    EXPECT_GE(steps_kept(make_plan(graph, true, DataType::f32, Recompute::none, delay), graph), delay);
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
