// Planning without a GPU: from the description of one, cuDNN finds engines and makes plans for every
// convolution of every network file, in every pass and arithmetic. So what we tell cuDNN of a convolution is
// tested on any machine; only running the plans needs a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "nn/cuda/cudnn_graph.h"
#include "nn/graph.h"
#include "nn/ops.h"

namespace lpsgd::cuda {
namespace {

/// A GPU as cuDNN serialises it.
std::string device_text(std::string_view name, int version, int multiprocessors, int shared_memory,
                        std::int64_t memory) {
  return fmt::format(
      R"({{"cudaDeviceId": 0, "deviceName": "{}", "deviceVer": {}, "driverVer": 13000, "isTccDriver": 0,
"l2CacheSize": 41943040, "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535],
"maxCtasPerSM": 32, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
"maxSharedMemoryPerBlockOptin": {}, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
"memClockRateKHz": 3201000, "multiProcessorCount": {}, "pciDeviceId": 0, "regsPerBlock": 65536,
"reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000, "supportCoopLaunch": 1,
"totalGlobalMem": {}, "warpSize": 32}})",
      name, version, shared_memory, multiprocessors, memory);
}
std::string h200() {
  return device_text("NVIDIA H200", 900, 132, 232448, 150754820096);
}
std::string a100() {
  return device_text("NVIDIA A100-SXM4-40GB", 800, 108, 166912, 42505273344);
}

class CudnnPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      describe(h200());
    } catch (const DeviceError& e) {
      GTEST_SKIP() << "this cuDNN does not take the description of a device: " << e.what();
    }
  }
  /// Plans are made for this GPU from now on.
  void describe(const std::string& device) {
    device_ = Descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    device_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                static_cast<std::int64_t>(device.size()), device.data());
    device_.finalize();
  }
  /// Whether an engine takes it with at most `workspace` bytes.
  bool has_plan(const ConvProblem& problem, std::int64_t workspace = std::int64_t{1} << 30) {
    const ConvGraph::Target target{nullptr, &device_};
    const ConvGraph graph(problem, target);
    for (ConvEngine& engine : graph.engines()) {
      const std::optional<ConvPlan> plan = graph.plan(std::move(engine));
      if (plan && plan->workspace() <= workspace) return true;
    }
    return false;
  }
  const Descriptor& device() const { return device_; }
  std::size_t count_engines(const ConvProblem& problem) {
    return ConvGraph(problem, {nullptr, &device_}).engines().size();
  }
  /// Engines that plan: those without a transform, and those with one.
  struct Count {
    int strict = 0, transforms = 0;
    Count& operator+=(const Count& o) {
      strict += o.strict;
      transforms += o.transforms;
      return *this;
    }
  };
  Count count_plans(ConvProblem problem, Layout layout) {
    problem.layout = layout;
    const ConvGraph graph(problem, {nullptr, &device_});
    Count out;
    for (ConvEngine& engine : graph.engines()) {
      const bool transforms = !engine.transform.empty();
      if (graph.plan(std::move(engine))) ++(transforms ? out.transforms : out.strict);
    }
    return out;
  }

 private:
  Descriptor device_{CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR};
};

/// Collects the convolutions that a network asks for.
class Collector final : public Backend {
 public:
  explicit Collector(std::int64_t batch) : batch_(batch) {}
  std::set<std::vector<std::int64_t>> keys;
  std::vector<ConvProblem> problems;

  void* allocate(std::int64_t) override { return nullptr; }
  std::unique_ptr<PixelInput> pixel_input(const PixelDesc&) override { return nullptr; }
  void upload(void*, DataType, std::span<const float>, Event*) override {}
  void download(std::span<float>, DataType, const void*) override {}
  void finish_planning() override {}
  void prepare_thread() override {}
  std::unique_ptr<Op> conv(const Binding& b, const ConvDesc& d) override {
    ConvProblem p{.batch = batch_,
                  .in = b.inputs[0].shape,
                  .out = b.shape,
                  .kernel = d.kernel,
                  .stride = d.stride,
                  .pad = d.pad,
                  .groups = d.groups,
                  .bias = d.bias};
    if (keys.insert(p.key()).second) problems.push_back(p);
    return nullptr;
  }
  std::unique_ptr<Op> dense(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> batch_norm(const Binding&, const BatchNormDesc&) override { return nullptr; }
  std::unique_ptr<Op> activation(const Binding&, Activation) override { return nullptr; }
  std::unique_ptr<Op> scale(const Binding&, double) override { return nullptr; }
  std::unique_ptr<Op> multiply(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> add(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> concat(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> dropout(const Binding&, double) override { return nullptr; }
  std::unique_ptr<Op> lrn(const Binding&, const LrnDesc&) override { return nullptr; }
  std::unique_ptr<Op> lstm(const Binding&, const LstmDesc&) override { return nullptr; }
  std::unique_ptr<Op> embedding(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> layer_norm(const Binding&, const LayerNormDesc&) override { return nullptr; }
  std::unique_ptr<Op> group_norm(const Binding&, const GroupNormDesc&) override { return nullptr; }
  std::unique_ptr<Op> attention(const Binding&, const AttentionDesc&) override { return nullptr; }
  std::unique_ptr<Op> position(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> class_token(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> select_frame(const Binding&, std::int64_t) override { return nullptr; }
  std::unique_ptr<Op> pool(const Binding&, const PoolDesc&) override { return nullptr; }
  std::unique_ptr<Op> channels_first(const Binding&) override { return nullptr; }
  std::unique_ptr<Op> sum(DataType, void*, std::vector<const void*>, const void*, std::int64_t) override {
    return nullptr;
  }
  std::unique_ptr<LossOp> softmax_cross_entropy(DataType, const void*, void*, const LossDesc&) override {
    return nullptr;
  }

 private:
  std::int64_t batch_;
};

std::vector<ConvProblem> convolutions_of(const std::string& file, std::int64_t batch) {
  Collector collector(batch);
  const Graph graph = read_graph(config::parse_file(file));
  for (std::size_t n = 1; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    Binding b;
    for (const std::size_t i : node.inputs) b.inputs.push_back({.shape = graph.nodes[i].shape});
    b.shape = node.shape;
    if (!node.layer->is_view()) node.layer->make(collector, b);
  }
  return collector.problems;
}

/// Every pass, in the fixed order and in fp32 and bf16: what these allow, tf32 and no fixed order allow, too.
int check_all(const ConvProblem& shape, const std::function<bool(const ConvProblem&)>& has_plan) {
  int checked = 0;
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    for (const ConvPass pass : {ConvPass::forward, ConvPass::input_gradient, ConvPass::weight_gradient}) {
      ConvProblem p = shape;
      p.compute = compute;
      p.pass = pass;
      p.deterministic = true;
      p.type = p.gradient_type = compute == Compute::bf16 ? DataType::bf16 : DataType::f32;
      p.bias = false;
      EXPECT_TRUE(has_plan(p)) << "input " << shape_text(p.in) << " window " << p.kernel.h << "x"
                               << p.kernel.w << " stride " << p.stride.h << " filters " << p.out[2]
                               << " pass " << static_cast<int>(pass) << " compute "
                               << static_cast<int>(compute);
      ++checked;
      if (compute != Compute::fp32) continue;
      p.layout = Layout::nchw;
      EXPECT_TRUE(has_plan(p)) << "NCHW, filters " << p.out[2] << " pass " << static_cast<int>(pass);
    }
  }
  return checked;
}

TEST_F(CudnnPlan, EveryConvolutionOfEveryNetwork) {
  std::set<std::vector<std::int64_t>> seen;
  int checked = 0;
  for (const auto& file : std::filesystem::directory_iterator(LPSGD_SOURCE_DIR "/configs/networks")) {
    SCOPED_TRACE(file.path().string());
    for (const ConvProblem& p : convolutions_of(file.path().string(), 32))
      if (seen.insert(p.key()).second)
        checked += check_all(p, [&](const ConvProblem& q) { return has_plan(q); });
  }
  EXPECT_GT(checked, 6 * 50);
}

ConvProblem wide_3x3(ConvPass pass) {
  return {.pass = pass,
          .batch = 32,
          .in = {28, 28, 128},
          .out = {28, 28, 128},
          .kernel = {3, 3},
          .stride = {1, 1},
          .pad = {1, 1}};
}

// Engines that round float32 operands are offered, too, where that is asked for, and only there.
TEST_F(CudnnPlan, Tf32HasItsEngines) {
  for (const ConvPass pass : {ConvPass::forward, ConvPass::input_gradient, ConvPass::weight_gradient}) {
    ConvProblem p = wide_3x3(pass);
    const std::size_t fp32 = count_engines(p);
    p.compute = Compute::tf32;
    EXPECT_GT(fp32, 0u);
    EXPECT_GT(count_engines(p), fp32);
  }
}

// What the search in fp32 may choose from beside strict engines in NHWC. cuDNN 9 has no engine with a
// transform for compute capability 9.0. A test's properties are in its report.
TEST_F(CudnnPlan, Fp32HasTransformsAndNchw) {
  for (const auto& [device, name, has_transforms] :
       {std::tuple{h200(), "H200", false}, {a100(), "A100", true}}) {
    describe(device);
    for (const auto& [network, batch] : {std::pair{"alexnet", 256}, {"vgg19", 32}, {"resnet50", 32}}) {
      Count nhwc, nchw;
      for (ConvProblem p :
           convolutions_of(fmt::format("{}/configs/networks/{}.yaml", LPSGD_SOURCE_DIR, network), batch))
        for (const ConvPass pass : {ConvPass::forward, ConvPass::input_gradient, ConvPass::weight_gradient}) {
          p.pass = pass;
          p.bias = false;
          nhwc += count_plans(p, Layout::nhwc);
          nchw += count_plans(p, Layout::nchw);
        }
      EXPECT_GT(nhwc.strict, 0);
      EXPECT_GT(nchw.strict, 0);
      if (has_transforms) {
        EXPECT_GT(nhwc.transforms, 0);
        EXPECT_GT(nchw.transforms, 0);
      }
      const std::string text = fmt::format("NHWC: {} without a transform, {} with one; NCHW: {} and {}",
                                           nhwc.strict, nhwc.transforms, nchw.strict, nchw.transforms);
      RecordProperty(fmt::format("{}_{}", name, network), text);
      std::printf("%s, %s: %s\n", name, network, text.c_str());
    }
  }
}

TEST_F(CudnnPlan, DeterministicAndBf16HaveNoTransform) {
  describe(a100());
  for (const ConvPass pass : {ConvPass::forward, ConvPass::input_gradient, ConvPass::weight_gradient})
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      ConvProblem p = wide_3x3(pass);
      p.deterministic = true;
      EXPECT_EQ(count_plans(p, layout).transforms, 0);
      p.deterministic = false;
      EXPECT_GT(count_plans(p, layout).transforms, pass == ConvPass::weight_gradient ? -1 : 0);
      p.compute = Compute::bf16;
      p.type = p.gradient_type = DataType::bf16;
      EXPECT_EQ(count_plans(p, layout).transforms, 0);
    }
}

// For this shape and GPU cuDNN names 30 engines that use tensor cores before those that do not. Four more are
// its fallbacks.
TEST_F(CudnnPlan, Fp32HasMoreThanFallbacks) {
  const ConvProblem p{.batch = 32,
                      .in = {56, 56, 128},
                      .out = {56, 56, 128},
                      .kernel = {3, 3},
                      .stride = {1, 1},
                      .pad = {1, 1}};
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) EXPECT_GT(count_plans(p, layout).strict, 4);
}

TEST_F(CudnnPlan, OddShapesGroupsAndFusedBiasAndRelu) {
  const auto problem = [](Shape in, Size2 kernel, Size2 stride, Size2 pad, std::int64_t filters,
                          std::int64_t groups) {
    const Shape out{(in[0] + 2 * pad.h - kernel.h) / stride.h + 1,
                    (in[1] + 2 * pad.w - kernel.w) / stride.w + 1, filters};
    return ConvProblem{.batch = 3,
                       .in = std::move(in),
                       .out = out,
                       .kernel = kernel,
                       .stride = stride,
                       .pad = pad,
                       .groups = groups};
  };
  const auto has = [&](const ConvProblem& p) { return has_plan(p); };
  for (const ConvProblem& p :
       {problem({7, 6, 3}, {3, 2}, {2, 1}, {1, 0}, 6, 1), problem({8, 8, 2}, {3, 3}, {4, 4}, {0, 0}, 4, 1),
        problem({9, 9, 24}, {3, 3}, {1, 1}, {1, 1}, 24, 24),
        problem({13, 13, 16}, {5, 5}, {1, 1}, {2, 2}, 32, 2),
        problem({1, 1, 5}, {1, 1}, {1, 1}, {0, 0}, 7, 1)}) {
    check_all(p, has);
    for (const bool relu : {false, true}) {
      ConvProblem fused = p;
      fused.bias = true;
      fused.relu = relu;
      EXPECT_TRUE(has_plan(fused));
    }
  }
}

TEST_F(CudnnPlan, ThereIsOneWithoutWorkspace) {
  EXPECT_TRUE(has_plan({.batch = 64,
                        .in = {56, 56, 64},
                        .out = {56, 56, 64},
                        .kernel = {3, 3},
                        .stride = {1, 1},
                        .pad = {1, 1}},
                       0));
}

/// The engines that cuDNN names for a convolution that also takes the sums of its output and of its squares
/// over each channel: 3x3, 64 channels, 56 x 56 pixels.
std::int64_t engines_with_statistics(cudnnDataType_t type, const Descriptor& device) {
  constexpr std::int64_t batch = 32, channels = 64, size = 56;
  const auto tensor = [](std::int64_t id, cudnnDataType_t of, std::int64_t n, std::int64_t side) {
    Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, of);
    d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::vector{n, channels, side, side});
    d.set(CUDNN_ATTR_TENSOR_STRIDES,
          std::vector{side * side * channels, std::int64_t{1}, side * channels, channels});
    d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16});
    d.finalize();
    return d;
  };
  const Descriptor x = tensor(1, type, batch, size), w = tensor(2, type, channels, 3),
                   y = tensor(3, type, batch, size);
  const Descriptor sum = tensor(4, CUDNN_DATA_FLOAT, 1, 1), squares = tensor(5, CUDNN_DATA_FLOAT, 1, 1);

  Descriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2});
  for (const auto name : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                          CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES})
    conv.set(name, std::vector<std::int64_t>{1, 1});
  conv.finalize();
  Descriptor forward(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, conv);
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1.0f);
  forward.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0.0f);
  forward.finalize();
  Descriptor statistics(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  const cudnnGenStatsMode_t sums = CUDNN_GENSTATS_SUM_SQSUM;
  statistics.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &sums);
  statistics.set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
  statistics.set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
  statistics.set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sum);
  statistics.set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares);
  statistics.finalize();

  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  const std::array operations{forward.get(), statistics.get()};
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.size(),
            operations.data());
  graph.finalize();
  std::int64_t all = 0;
  for (const cudnnBackendHeurMode_t heuristic : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    Descriptor finder(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    finder.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    finder.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &heuristic);
    finder.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    if (finder.try_finalize() != CUDNN_STATUS_SUCCESS) continue;
    std::vector<Descriptor> engines;  // a count without room for them would include those that do not fit
    std::vector<cudnnBackendDescriptor_t> handles;
    for (int i = 0; i < 64; ++i)
      handles.push_back(engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    std::int64_t count = 0;
    cudnnBackendGetAttribute(finder.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                             static_cast<std::int64_t>(handles.size()), &count,
                             static_cast<void*>(handles.data()));
    all += count;
  }
  return all;
}

// Why a batch norm's statistics are not taken by cuDNN's convolution before it: our arithmetics are float32
// and bfloat16. (docs/results/gpu.md)
TEST_F(CudnnPlan, OnlyHalfPrecisionHasStatistics) {
  if (cudnnGetVersion() >= 92000) GTEST_SKIP() << "known of cuDNN 9.19; a later one may have more";
  for (const std::string& gpu : {h200(), a100()}) {
    describe(gpu);
    EXPECT_GT(engines_with_statistics(CUDNN_DATA_HALF, device()), 0);
    EXPECT_EQ(engines_with_statistics(CUDNN_DATA_BFLOAT16, device()), 0);
    EXPECT_EQ(engines_with_statistics(CUDNN_DATA_FLOAT, device()), 0);
  }
}

// Inconsistent descriptions are refused. Otherwise the test above could not fail.
TEST_F(CudnnPlan, AWrongShapeIsRefused) {
  ConvProblem p{
      .batch = 2, .in = {8, 8, 16}, .out = {7, 8, 16}, .kernel = {3, 3}, .stride = {1, 1}, .pad = {1, 1}};
  EXPECT_THROW(ConvGraph(p, {}), DeviceError);
}

}  // namespace
}  // namespace lpsgd::cuda
