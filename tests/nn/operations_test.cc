// The comparison of backends (operation_cases.h) on the CPU alone: with one thread and with three, and in
// bfloat16 where the processor has it. It keeps the cases right on machines without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/nn/operation_cases.h"

namespace lpsgd {
namespace {

TEST(Operations, ThreadsDoNotMatter) {
  for (const OperationCase& c : operation_cases()) {
    const auto one = make_cpu_backend(1, Compute::fp32), three = make_cpu_backend(3, Compute::fp32);
    const Distance d = worst_distance(run_case(*three, DataType::f32, c), run_case(*one, DataType::f32, c));
    EXPECT_LE(d.value, 1e-5) << c.name << ": " << d.tensor;
  }
}

TEST(Operations, ColumnsHoldWhatAnArrayOfItsOwnHolds) {
  int checked = 0;
  for (const OperationCase& c : operation_cases()) {
    if (c.before + c.behind == 0) continue;
    OperationCase plain = c;
    plain.before = plain.behind = 0;
    const auto one = make_cpu_backend(1, Compute::fp32), again = make_cpu_backend(1, Compute::fp32);
    const Distance d =
        worst_distance(run_case(*again, DataType::f32, c), run_case(*one, DataType::f32, plain));
    EXPECT_LE(d.value, 1e-5) << c.name << ": " << d.tensor;
    ++checked;
  }
  EXPECT_GE(checked, 60);
}

TEST(Operations, NotANumberIsNotHidden) {
  for (const auto& [compute, type] :
       {std::pair{Compute::fp32, DataType::f32}, {Compute::bf16, DataType::bf16}}) {
    if (cpu_unsupported(compute)) continue;
    EXPECT_EQ(hidden_not_a_number(*make_cpu_backend(2, compute), type), "");
  }
}

TEST(Operations, ConvolutionsEqualTheirDefinition) {
  for (const OperationCase& c : operation_cases()) {
    if (!c.convolution) continue;
    const auto backend = make_cpu_backend(1, Compute::fp32);
    const Results results = run_case(*backend, DataType::f32, c);
    for (const auto& [tensor, truth] : convolution_by_definition(c, results))
      EXPECT_LE(worst_distance({{tensor, results.at(tensor)}}, {{tensor, truth}}).value, 2e-6)
          << c.name << ": " << tensor;
  }
}

/// The same sample in a batch too small for tiles, and in one large enough: other sums, other roundings.
TEST(Operations, LargeConvolutionsTakeTiles) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    GTEST_SKIP() << "tiles need multiply-add";
  int checked = 0;
  for (OperationCase c : operation_cases()) {
    // Own tiles, and oneDNN's where it has them.
    if (!c.convolution || (c.inputs[0] != Shape{16, 16, 16} && c.inputs[0] != Shape{16, 16, 32})) continue;
    const auto small = make_cpu_backend(1, Compute::fp32), large = make_cpu_backend(1, Compute::fp32);
    std::vector<float> two = run_case(*large, DataType::f32, c).at("output");
    c.batch = 1;
    const std::vector<float> one = run_case(*small, DataType::f32, c).at("output");
    two.resize(one.size());
    EXPECT_NE(one, two);
    EXPECT_LE(worst_distance({{"output", two}}, {{"output", one}}).value, 2e-6);
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

TEST(Operations, Bfloat16IsCloseToFloat32) {
  if (const auto why = unsupported(Compute::bf16)) GTEST_SKIP() << *why;
  for (const OperationCase& c : operation_cases()) {
    const auto wide = make_cpu_backend(1, Compute::fp32), low = make_cpu_backend(1, Compute::bf16);
    const Distance d = worst_distance(run_case(*low, DataType::bf16, c), run_case(*wide, DataType::f32, c));
    EXPECT_LE(d.value, 2e-2) << c.name << ": " << d.tensor;
  }
}

TEST(Operations, LossAndSums) {
  const auto one = make_cpu_backend(1, Compute::fp32), again = make_cpu_backend(1, Compute::fp32);
  EXPECT_EQ(worst_distance(run_loss(*again, DataType::f32, {5, 3, 11, 0.1}, true),
                           run_loss(*one, DataType::f32, {5, 3, 11, 0.1}, true))
                .value,
            0.0);
  EXPECT_EQ(run_loss(*one, DataType::f32, {5, 1, 7}, false).at("scored"), std::vector<float>{14});
  EXPECT_LE(worst_distance(run_sum(*again, DataType::f32, 3, true, 1001),
                           run_sum(*one, DataType::f32, 3, true, 1001))
                .value,
            1e-7);
}

/// The comparison fails where it must: for the mask of another step, and for another weight.
TEST(Operations, ADifferenceIsSeen) {
  const Results a{{"x", {1, 2, 3}}}, b{{"x", {1, 2, 3.1f}}};
  EXPECT_NEAR(worst_distance(b, a).value, 0.1 / std::sqrt(14.0), 1e-6);
  EXPECT_EQ(worst_distance(a, a).value, 0.0);
  const Results nan{{"x", {std::nanf(""), 2, 3}}};
  EXPECT_TRUE(std::isnan(worst_distance(nan, a).value));
}

}  // namespace
}  // namespace lpsgd
