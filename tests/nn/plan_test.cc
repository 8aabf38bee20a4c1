// The plan: what is fused, and that no memory is used twice at one time.
#include "nn/plan.h"

#include <gtest/gtest.h>

#include <set>

namespace lpsgd {
namespace {

Graph graph_of(const std::string& layers) {
  return read_graph(config::parse_text("input: [8, 8, 4]\nclasses: 4\nlayers:\n" + layers, "net.yaml"));
}

const std::string tail = "  - average_pool\n  - flatten\n  - {dense: fc, units: 4}\n";

TEST(OffsetAllocator, ReusesAndJoinsHoles) {
  OffsetAllocator a;
  EXPECT_EQ(a.take(10), 0);
  EXPECT_EQ(a.take(20), 16);
  EXPECT_EQ(a.take(16), 48);
  a.give_back(0, 10);
  a.give_back(16, 20);
  EXPECT_EQ(a.take(40), 0);  // the two holes are one of 48
  EXPECT_EQ(a.take(1), 64);
  a.give_back(64, 1);
  EXPECT_EQ(a.take(64), 64);  // the last hole grows
  EXPECT_EQ(a.high_water(), 128);
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
  const Plan plain =
      make_plan(graph_of("  - {conv: c1, filters: 4, kernel: 1}\n  - {relu: r}\n" + tail), true);
  EXPECT_EQ(plain.values[1].offset, plain.values[2].offset);
  const Plan kept = make_plan(
      graph_of("  - {conv: c1, filters: 4, kernel: 1}\n  - {tanh: t}\n  - {relu: r}\n" + tail), true);
  EXPECT_NE(kept.values[2].offset, kept.values[3].offset);
}

TEST(Plan, InferenceNeedsLessMemory) {
  std::string deep;
  for (int i = 0; i < 20; ++i) deep += "  - {conv: c" + std::to_string(i) + ", filters: 4, kernel: 1}\n";
  const Graph graph = graph_of(deep + tail);
  EXPECT_LE(make_plan(graph, false).value_arena, 3 * 256 + 64);
  EXPECT_GE(make_plan(graph, true).value_arena, 21 * 256);
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
