// The memory of a plan: no value and no gradient is overwritten while it is still to be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "nn/plan.h"
#include "tests/nn/recompute_cases.h"

namespace lpsgd {
namespace {

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

}  // namespace
}  // namespace lpsgd
