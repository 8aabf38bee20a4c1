// Which engines and layouts convolutions may take: engines that transform their operands, if they are
// accurate, and NCHW. Of the emulated engines 5 and 6 sum in float32, 7 has twice float32's error, and 4 a
// thousand times.
#include <fmt/format.h>

#include "core/error.h"
#include "nn/cuda/backend.h"
#include "tests/nn/operation_cases.h"
#include "tests/nn/plan_search_fixture.h"

namespace lpsgd {
namespace {

class ConvEnginesGpu : public PlanSearchGpu {
 protected:
  void SetUp() override {
    PlanSearchGpu::SetUp();
    if (!IsSkipped() && !is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  }
  static void missing_engines(const char* which) { setenv("LPSGD_EMULATED_MISSING_ENGINES", which, 1); }
  static void slow_engines(const char* which) { setenv("LPSGD_EMULATED_SLOW_ENGINES", which, 1); }
  static void slow_layouts(const char* which) { setenv("LPSGD_EMULATED_SLOW_LAYOUTS", which, 1); }
};

TEST_F(ConvEnginesGpu, AnAccurateTransformIsTakenWhereItIsTheFastest) {
  missing_engines("6=1");
  slow_engines("5=0.02");
  const std::vector<std::string> found = choices();
  EXPECT_EQ(count(found, "convolution"), 5);
  EXPECT_EQ(count(found, "engine 7, 2=70, Winograd 4x4"), 5);
  EXPECT_EQ(count(found, "Winograd 6x6"), 0);
}

// Two others fill the budget, and cuDNN names it behind them.
TEST_F(ConvEnginesGpu, ATransformIsMeasuredEarly) {
  slow_engines("5=0.3,6=0.3");
  EXPECT_EQ(count(choices(), "engine 7, 2=70, Winograd 4x4"), 5);
}

TEST_F(ConvEnginesGpu, AnInaccurateOneNever) {
  slow_engines("5=0.02,6=0.02,7=0.02");
  EXPECT_EQ(count(choices(), "engine 4"), 0);
  EXPECT_LT(seconds_, 10);
}

TEST_F(ConvEnginesGpu, ADeterministicNetworkTakesNeitherTransformsNorNchw) {
  slow_engines("6=0.02");
  const std::vector<std::string> found = choices(true);
  EXPECT_EQ(count(found, "engine 6"), 5);
  EXPECT_EQ(count(found, "Winograd"), 0);
  EXPECT_EQ(count(found, "nchw"), 0);
  missing_engines("6=1");  // what is left adds in no fixed order, or transforms
  EXPECT_THROW(choices(true), DeviceError);
}

TEST_F(ConvEnginesGpu, AStoredTransformIsNotCheckedAgain) {
  missing_engines("6=1");
  slow_engines("5=0.02");
  const std::vector<std::string> first = choices();
  EXPECT_EQ(count(first, "engine 7, 2=70, Winograd 4x4"), 5);
  slow_engines("5=1");  // a check would run it
  EXPECT_EQ(choices(), first);
  EXPECT_LT(seconds_, 1);
}

TEST_F(ConvEnginesGpu, AStoredLayoutIsTaken) {
  missing_engines("6=1,7=1");
  slow_layouts("0=0.05");
  const std::vector<std::string> first = choices();
  EXPECT_EQ(count(first, ", nchw"), 5);
  EXPECT_NE(read_file(files()[0]).find("engine 5, 2=50, nchw\n"), std::string::npos);
  slow_layouts("1=0.05");
  EXPECT_EQ(choices(), first);
}

// Where runs in NHWC are slow, its first engine takes the time of several in NCHW, so these are measured
// next.
TEST_F(ConvEnginesGpu, LayoutsTakeTurnsByTime) {
  missing_engines("4=1,7=1");
  slow_layouts("0=0.15");
  slow_engines("5=0.02");
  EXPECT_EQ(count(choices(), "engine 6, 2=60, nchw"), 5);
}

// Without a strict engine there is nothing to compare with.
TEST_F(ConvEnginesGpu, NoTransformWithoutAStrictEngine) {
  missing_engines("5=1,6=1");
  EXPECT_THROW(choices(), DeviceError);
}

// The search runs candidates on random operands, but not on the network's weights.
TEST_F(ConvEnginesGpu, TheCheckLeavesNothing) {
  const auto state = [&](bool deterministic) {
    const NetworkSpec spec(config::parse_text(
        fmt::format("input: [8, 8, 3]\nclasses: 4\nlayers:\n{}", two_convolutions), "net.yaml"));
    Network network(spec, {.batch = 4, .device = device, .deterministic = deterministic});
    std::vector<float> out(network.parameters().size());
    copy_values<float>(out, network.parameters(), network.stream());
    network.stream().synchronize();
    return out;
  };
  missing_engines("6=1");
  slow_engines("5=0.02");
  const std::size_t before = device_memory_use(device).current;
  const std::vector<float> checked = state(false);
  EXPECT_EQ(device_memory_use(device).current, before);
  missing_engines("");
  EXPECT_EQ(checked, state(true));
}

// Convolutions in NCHW, with groups, strides and paddings, forward and backward.
TEST_F(ConvEnginesGpu, NchwGivesTheSameResults) {
  setenv("LPSGD_EMULATED_MISSING_LAYOUTS", "0=1", 1);
  missing_engines("0=1,4=1,6=1,7=1");  // to run few
  for (const Compute compute : {Compute::fp32, Compute::tf32}) {
    int transposed = 0;
    for (const OperationCase& c : operation_cases()) {
      if (!c.convolution || c.batch * elements_of(c.inputs[0]).value_or(0) > 100000) continue;
      SCOPED_TRACE(c.name);
      const ScopedDevice scope(device);
      const auto cpu = make_cpu_backend(1, Compute::fp32);
      const auto cuda = make_cuda_backend(device, compute, false);
      const Distance d = worst_distance(run_case(*cuda, DataType::f32, c), run_case(*cpu, DataType::f32, c));
      EXPECT_LE(d.value, compute == Compute::fp32 ? 1e-5 : 2e-3) << d.tensor;
      EXPECT_EQ(count(cuda->choices(), "nchw"), count(cuda->choices(), "convolution"));
      transposed += count(cuda->choices(), "nchw");
    }
    EXPECT_GT(transposed, 20);
  }
}

// Strides of an image's few channels as blocks of pixels, forward and for the gradient of the weights.
TEST_F(ConvEnginesGpu, SpaceToDepthGivesTheSameResults) {
  setenv("LPSGD_EMULATED_SLOW_STRIDES", "2=0.02,3=0.02,4=0.02", 1);
  missing_engines("4=1,7=1");  // to run few
  for (const Compute compute : {Compute::fp32, Compute::tf32, Compute::bf16}) {
    int in_blocks = 0;
    for (const OperationCase& c : operation_cases()) {
      if (!c.convolution || c.inputs[0][2] > 4 || c.convolution->stride.h == 1) continue;
      SCOPED_TRACE(c.name);
      const ScopedDevice scope(device);
      const auto cpu = make_cpu_backend(1, Compute::fp32);
      const auto cuda = make_cuda_backend(device, compute, false);
      const DataType type = compute == Compute::bf16 ? DataType::bf16 : DataType::f32;
      const Distance d = worst_distance(run_case(*cuda, type, c), run_case(*cpu, DataType::f32, c));
      EXPECT_LE(d.value, compute == Compute::fp32   ? 1e-5
                         : compute == Compute::tf32 ? 2e-3
                                                    : 2e-2)
          << d.tensor;
      const bool covers = c.convolution->kernel.h >= c.convolution->stride.h;
      EXPECT_EQ(count(cuda->choices(), "space to depth"), covers ? 2 : 0)
          << testing::PrintToString(cuda->choices());
      in_blocks += covers;
    }
    EXPECT_GE(in_blocks, 5);
  }
}

TEST_F(ConvEnginesGpu, AStoredSpaceToDepthIsTaken) {
  constexpr const char* strided =
      "  - {conv: c1, filters: 8, kernel: 3, stride: 2, pad: 1}\n  - flatten\n  - {dense: f, units: 4}\n";
  setenv("LPSGD_EMULATED_SLOW_STRIDES", "2=0.02", 1);
  const std::vector<std::string> first = choices(false, strided);
  EXPECT_EQ(count(first, ", space to depth"), 2) << testing::PrintToString(first);
  setenv("LPSGD_EMULATED_SLOW_STRIDES", "1=0.02", 1);
  EXPECT_EQ(choices(false, strided), first);
  EXPECT_EQ(count(choices(true, strided), "space to depth"), 0) << "deterministic";
}

// Where the convolution over blocks of pixels is the fastest but wrong, the check on the device refuses it.
TEST_F(ConvEnginesGpu, AWrongSpaceToDepthIsRefused) {
  constexpr const char* strided =
      "  - {conv: c1, filters: 8, kernel: 3, stride: 2, pad: 1}\n  - flatten\n  - {dense: f, units: 4}\n";
  setenv("LPSGD_EMULATED_SLOW_STRIDES", "2=0.02", 1);
  setenv("LPSGD_EMULATED_LOST_BITS", "1=20", 1);
  const std::vector<std::string> found = choices(false, strided);
  EXPECT_EQ(count(found, "space to depth"), 0) << testing::PrintToString(found);
}

TEST_F(ConvEnginesGpu, Bfloat16StaysInNhwc) {
  slow_layouts("0=0.01");
  for (const OperationCase& c : operation_cases()) {
    if (!c.convolution) continue;
    const ScopedDevice scope(device);
    const auto cuda = make_cuda_backend(device, Compute::bf16, false);
    run_case(*cuda, DataType::bf16, c);
    EXPECT_EQ(count(cuda->choices(), "nchw"), 0);
    return;
  }
}

}  // namespace
}  // namespace lpsgd
