// Our own kernels of small convolutions, in every pass, against the definition in double. With
// `deterministic` they are taken wherever they cover a pass, so nothing hangs on how fast they are.
//
// Bounds. Operands are exact in bfloat16, so products are, too. What is stored in bfloat16 is rounded by half
// a unit of its last place, at most 2^-8 of its value. A float32 sum takes at most 36 products of matrices,
// or for the weights' gradient 64 and 30 partial sums, each of which rounds it by 2^-23 at most (the
// instructions may cut off). Sums are below 16, and a gradient's norm is compared with itself: 100 * 2^-23
// = 1.2e-5.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/philox.h"
#include "nn/cuda/backend.h"
#include "nn/cuda/conv_accuracy.h"
#include "nn/cuda/small_conv_plan.h"
#include "tests/nn/bf16_gpu_test.h"
#include "tests/nn/operation_cases.h"

namespace lpsgd {
namespace {

constexpr double rounding = 0x1p-8, sum_rounding = 16 * 36 * 0x1p-23, gradient_bound = 100 * 0x1p-23;

OperationCase small_case(std::int64_t batch, const Shape& in, std::int64_t filters, std::int64_t stride = 1,
                         bool bias = false, bool relu = false) {
  return convolution_case(batch, in, {{3, 3}, {stride, stride}, {1, 1}, filters, 1, bias}, relu);
}

/// More tiles than blocks: two images do not fit in one.
constexpr std::int64_t many = 260;
const Shape many_in{1, 170, 16};
/// The same, in blocks of several warps, and tiles of several images, the last one not full.
OperationCase several_warps(std::int64_t channels) {
  return small_case(300, {1, 170, channels}, 48, 2);
}
OperationCase several_images(std::int64_t channels) {
  return small_case(161, {3, 1, channels}, 64);
}

std::vector<OperationCase> small_cases() {
  std::vector<OperationCase> out{
      // Every pair of channels, images smaller and larger than a tile, sides that no tile divides.
      small_case(1, {1, 1, 16}, 16), small_case(3, {5, 7, 16}, 32, 1, true, true),
      small_case(1, {13, 9, 16}, 48, 1, false, true), small_case(3, {8, 8, 16}, 64, 1, true),
      small_case(2, {33, 37, 32}, 16), small_case(2, {9, 13, 32}, 32, 1, true, true),
      small_case(1, {6, 5, 32}, 48), small_case(3, {8, 11, 32}, 64), small_case(2, {7, 7, 48}, 16, 1, true),
      small_case(1, {14, 13, 48}, 32, 1, true, true), small_case(3, {4, 4, 48}, 48),
      small_case(1, {19, 21, 48}, 64), small_case(3, {11, 6, 64}, 16, 1, true, true),
      small_case(1, {29, 24, 64}, 32), small_case(1, {1, 40, 64}, 48, 1, true),
      small_case(3, {8, 8, 64}, 64, 1, true, true), small_case(1, {45, 1, 64}, 64),
      // Stride 2, even and odd sides.
      small_case(2, {8, 8, 16}, 32, 2), small_case(3, {9, 7, 32}, 64, 2, true, true),
      small_case(1, {1, 1, 16}, 16, 2), small_case(2, {2, 35, 64}, 48, 2), small_case(3, {16, 15, 48}, 16, 2),
      small_case(17, {21, 21, 32}, 64),
      // More tiles than blocks: two buffers in turn.
      small_case(many, many_in, 16), several_warps(16), several_images(16)};
  // Channels of images, which have no gradient, smaller and larger than a tile; two buffers.
  const std::vector<OperationCase> images{small_case(2, {10, 10, 32}, 16),
                                          small_case(3, {9, 11, 3}, 16),
                                          small_case(2, {33, 21, 3}, 64, 1, true, true),
                                          small_case(3, {7, 8, 1}, 48, 2, true),
                                          small_case(2, {12, 9, 15}, 32),
                                          small_case(2, {6, 13, 8}, 16, 1, true),
                                          several_warps(3),
                                          several_images(3)};
  for (OperationCase image : images) {
    image.input_gradients = false;
    out.push_back(std::move(image));
  }
  OperationCase& evaluated = out.emplace_back(small_case(2, {10, 9, 16}, 16, 1, true, true));
  evaluated.training = false;
  return out;
}

class SmallConvGpu : public Bf16GpuTest {
 protected:
  std::unique_ptr<Backend> backend() { return make_cuda_backend(device, Compute::bf16, true); }
  static int own(const Backend& backend) {
    const std::vector<std::string> choices = backend.choices();
    return static_cast<int>(std::ranges::count_if(
        choices, [](const std::string& c) { return c.find(cuda::small_conv_name) != std::string::npos; }));
  }
  static std::string name(const OperationCase& c) { return fmt::format("batch {} {}", c.batch, c.name); }
};

/// The largest difference in units of its bound, of values that are rounded when they are stored.
double worst_rounding(const std::vector<float>& values, const std::vector<float>& truth) {
  double worst = values.size() == truth.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < truth.size() && i < values.size(); ++i) {
    const double expected = static_cast<double>(truth[i]);
    const double off = std::abs(static_cast<double>(values[i]) - expected) /
                       (rounding * std::abs(expected) + (1 + rounding) * sum_rounding);
    if (!(off <= worst)) worst = off;  // a NaN is the worst
  }
  return worst;
}

TEST_F(SmallConvGpu, OwnKernelsEqualTheDefinition) {
  for (const OperationCase& c : small_cases()) {
    SCOPED_TRACE(name(c));
    const auto gpu = backend();
    const Results results = run_case(*gpu, DataType::bf16, c);
    EXPECT_EQ(own(*gpu), !c.training ? 1 : c.input_gradients ? 3 : 2);
    const Results truth = convolution_by_definition(c, results);
    EXPECT_LE(worst_rounding(results.at("output"), truth.at("output")), 1);
    if (!c.training) continue;
    if (c.input_gradients) {
      EXPECT_LE(worst_rounding(results.at("input 0"), truth.at("input 0")), 1);
    }
    for (const char* gradient : {"parameter 0", "parameter 1"}) {
      if (!truth.contains(gradient)) continue;
      EXPECT_LE(worst_distance({{gradient, results.at(gradient)}}, {{gradient, truth.at(gradient)}}).value,
                gradient_bound)
          << gradient;
    }
  }
}

// Of few results the largest rounding may be that of all.
TEST_F(SmallConvGpu, FewResultsAreAcceptedToo) {
  for (const std::int64_t channels : {16, 32, 48, 64})
    for (const std::int64_t filters : {16, 32, 48, 64}) {
      const OperationCase c = small_case(1, {1, 1, channels}, filters);
      SCOPED_TRACE(name(c));
      const auto gpu = backend();
      run_case(*gpu, DataType::bf16, c);
      EXPECT_EQ(own(*gpu), 3);
    }
}

TEST_F(SmallConvGpu, OwnKernelsGiveTheSameBitsAgain) {
  OperationCase image = small_case(3, {9, 13, 3}, 64);
  image.input_gradients = false;
  for (const OperationCase& c :
       {small_case(3, {9, 13, 32}, 64, 1, true), small_case(2, {9, 7, 64}, 32, 2), image}) {
    const auto once = backend(), again = backend();
    EXPECT_EQ(run_case(*once, DataType::bf16, c), run_case(*again, DataType::bf16, c));
    EXPECT_EQ(own(*once), c.input_gradients ? 3 : 2);
  }
}

/// The statistics of a convolution's output by a batch norm behind it: running mean and variance after one
/// pass in training, where both were 0 and the momentum is 1.
struct Norms {
  std::vector<float> values;                       // what the convolution wrote
  std::vector<std::vector<float>> mean, variance;  // of each batch norm
};
Norms run_norms(Backend& backend, const OperationCase& c, float bias, int norms) {
  backend.prepare_thread();
  const auto upload = [&](DataType type, const std::vector<float>& values) {
    void* data = backend.allocate(static_cast<std::int64_t>(values.size()) * size_of(type));
    backend.upload(data, type, values, nullptr);
    return data;
  };
  const auto random = [](std::int64_t n, std::uint32_t which) {
    PhiloxSequence sequence(5, RandomUse::dataset, which);
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& x : out) x = sequence.uniform() - 0.5f;
    return out;
  };
  const std::int64_t filters = c.output[2], values = c.batch * elements_of(c.output).value_or(0);
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(c.batch), 0);
  const auto loss =
      backend.softmax_cross_entropy(DataType::bf16, backend.allocate(4 * c.batch), nullptr, {c.batch, 1, 2});
  const TensorInfo weights{"w", TensorKind::dense, c.parameters[0], elements_of(c.parameters[0]).value_or(0),
                           0};
  const TensorInfo biases{"b", TensorKind::dense, {filters}, filters, weights.elements};
  const TensorInfo ones{"n", TensorKind::dense, {filters}, filters, weights.elements + filters};
  std::vector<float> arena = random(weights.elements, 1);
  arena.insert(arena.end(), static_cast<std::size_t>(filters), bias);
  arena.insert(arena.end(), static_cast<std::size_t>(filters), 1);
  auto* parameters = static_cast<float*>(upload(DataType::f32, arena));
  auto* gradients = static_cast<float*>(upload(DataType::f32, arena));
  backend.parameters({parameters, arena.size()});
  const auto view = [&](const TensorInfo& t) {
    return ParameterView{&t, parameters + t.offset, gradients + t.offset};
  };
  const auto memory = [&] {
    return upload(DataType::bf16, std::vector<float>(static_cast<std::size_t>(values)));
  };

  Binding conv;
  conv.batch = c.batch;
  conv.type = DataType::bf16;
  conv.shape = c.output;
  conv.relu = c.relu;
  conv.inputs = {{c.inputs[0], DataType::bf16,
                  upload(DataType::bf16, random(c.batch * elements_of(c.inputs[0]).value_or(0), 2)),
                  nullptr}};
  conv.output = memory();
  conv.output_gradients = {memory()};
  conv.parameters = {view(weights)};
  if (c.convolution->bias) conv.parameters.push_back(view(biases));
  std::vector<std::unique_ptr<Op>> ops;
  ops.push_back(c.make(backend, conv));
  std::vector<float*> buffers;
  for (int i = 0; i < norms; ++i) {
    Binding norm;
    norm.batch = c.batch;
    norm.type = DataType::bf16;
    norm.shape = c.output;
    norm.inputs = {{c.output, DataType::bf16, conv.output, memory()}};
    norm.output = memory();
    norm.output_gradients = {memory()};
    norm.parameters = {view(ones), view(ones)};
    norm.input_source = ops[0].get();
    for (int b = 0; b < 2; ++b) {
      buffers.push_back(
          static_cast<float*>(upload(DataType::f32, std::vector<float>(static_cast<std::size_t>(filters)))));
      norm.buffers.push_back(buffers.back());
    }
    ops.push_back(backend.batch_norm(norm, {1e-5, 1.0}));
  }
  backend.finish_planning();
  const Pass pass{.training = true, .valid = c.batch};
  for (int round = 0; round < 2; ++round) {
    backend.begin(pass, labels);
    for (const auto& op : ops) op->forward(pass);
  }
  const auto download = [&](DataType type, const void* from, std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n));
    backend.download(out, type, from);
    return out;
  };
  Norms out{download(DataType::bf16, conv.output, values), {}, {}};
  for (std::size_t i = 0; i < buffers.size(); i += 2) {
    out.mean.push_back(download(DataType::f32, buffers[i], filters));
    out.variance.push_back(download(DataType::f32, buffers[i + 1], filters));
  }
  return out;
}

// The variance's bound: a lane's float32 sum of at most 32 squares is rounded by 2^-24 each time, or is exact
// where the mean is far from zero (WarpMoments). 32 * 2^-24 of a sum that is up to a few times the variance.
TEST_F(SmallConvGpu, TakesTheStatisticsOfItsOutput) {
  struct Case {
    OperationCase conv;
    float bias;
  };
  for (const Case& c : {Case{small_case(3, {9, 13, 16}, 16), 0},
                        {small_case(2, {33, 18, 32}, 32, 1, true, true), 1},
                        {small_case(3, {7, 6, 64}, 64), 0},
                        {small_case(2, {12, 11, 48}, 48, 1, true), 300},
                        {small_case(5, {9, 8, 16}, 32, 2, true), -20},
                        {small_case(1, {1, 1, 16}, 64, 1, true), 2},
                        {small_case(3, {9, 13, 3}, 16), 0},
                        {small_case(2, {12, 11, 15}, 48, 1, true), 5},
                        {small_case(many, many_in, 16, 1, true), 3}}) {
    SCOPED_TRACE(name(c.conv));
    const auto gpu = backend();
    const Norms norms = run_norms(*gpu, c.conv, c.bias, 2);
    EXPECT_EQ(own(*gpu), 2);
    const auto channels = static_cast<std::size_t>(c.conv.output[2]);
    const auto rows = static_cast<double>(norms.values.size() / channels);
    for (std::size_t k = 0; k < channels; ++k) {
      double mean = 0, m2 = 0;
      for (std::size_t i = k; i < norms.values.size(); i += channels)
        mean += static_cast<double>(norms.values[i]) / rows;
      for (std::size_t i = k; i < norms.values.size(); i += channels)
        m2 += std::pow(static_cast<double>(norms.values[i]) - mean, 2);
      const double variance = m2 / std::max(rows - 1, 1.0);
      // The first norm's are the convolution's, the second's its own.
      for (std::size_t n = 0; n < 2; ++n) {
        ASSERT_NEAR(norms.mean[n][k], mean, 1e-6 * std::abs(mean) + 1e-5 * std::sqrt(variance))
            << n << " " << k;
        ASSERT_NEAR(norms.variance[n][k], variance, 1e-5 * variance + 1e-12) << n << " " << k;
      }
    }
  }
}

// The kernels that compute fewer than 16 channels as 16 do not write them.
TEST_F(SmallConvGpu, TheGradientOfFewChannelsIsCudnns) {
  const OperationCase c = small_case(2, {9, 7, 6}, 16);
  const auto gpu = backend();
  const Results results = run_case(*gpu, DataType::bf16, c);
  EXPECT_EQ(own(*gpu), 2);
  EXPECT_EQ(gpu->choices().size(), 3u);
  EXPECT_LE(worst_distance({{"input 0", results.at("input 0")}},
                           {{"input 0", convolution_by_definition(c, results).at("input 0")}})
                .value,
            rounding);
}

TEST_F(SmallConvGpu, OtherConvolutionsAreCudnns) {
  for (const ConvDesc& d :
       {ConvDesc{{5, 5}, {1, 1}, {2, 2}, 16, 1, false}, ConvDesc{{3, 3}, {1, 1}, {1, 1}, 20, 1, false}}) {
    const auto gpu = backend();
    run_case(*gpu, DataType::bf16, convolution_case(2, {8, 8, 16}, d, false));
    EXPECT_EQ(own(*gpu), 0);
    EXPECT_EQ(gpu->choices().size(), 3u);
  }
}

cuda::ConvProblem problem(cuda::ConvPass pass, Shape in, std::int64_t filters, std::int64_t stride = 1,
                          std::int64_t batch = 128) {
  cuda::ConvProblem p;
  p.pass = pass;
  p.compute = Compute::bf16;
  p.type = p.gradient_type = DataType::bf16;
  p.batch = batch;
  p.out = {(in[0] - 1) / stride + 1, (in[1] - 1) / stride + 1, filters};
  p.in = std::move(in);
  p.kernel = {3, 3};
  p.stride = {stride, stride};
  p.pad = {1, 1};
  return p;
}

constexpr cuda::ConvPass passes[] = {cuda::ConvPass::forward, cuda::ConvPass::input_gradient,
                                     cuda::ConvPass::weight_gradient};

/// The operation's memory, and what the check of a kernel says of a plan.
class CheckedKernel {
 public:
  CheckedKernel(cuda::Context& context, const cuda::ConvProblem& p) : context_(context), problem_(p) {
    const auto take = [&](std::int64_t n) { return context.array<float>(n); };
    own_.input = take(p.batch * p.in[0] * p.in[1] * p.in[2]);
    own_.output = take(p.batch * p.out[0] * p.out[1] * p.out[2]);
    const std::int64_t weights = p.out[2] * 9 * p.in[2];
    own_.weights = take(weights);
    own_.weight_gradient = p.pass == cuda::ConvPass::weight_gradient ? take(weights) : nullptr;
    own_.bias = p.bias ? take(p.out[2]) : nullptr;
    own_.relu = p.relu;
    tensors_ = {
        {cuda::conv_input, own_.input}, {cuda::conv_weights, own_.weights}, {cuda::conv_output, own_.output}};
    if (own_.bias) tensors_.emplace_back(cuda::conv_bias, own_.bias);
  }
  bool accepts(const cuda::SmallConv& plan) {
    return cuda::ConvAccuracy(context_, problem_, tensors_, own_).accepts(plan);
  }

 private:
  cuda::Context& context_;
  cuda::ConvProblem problem_;
  cuda::ConvTensors tensors_;
  cuda::SmallConvTensors own_;
};

TEST_F(SmallConvGpu, AKernelThatIsWrongOnThisDeviceIsRefused) {
  cuda::Context context(device, Compute::bf16, true, default_search_seconds);
  for (const cuda::ConvPass pass : passes)
    for (const int stride : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "pass " << static_cast<int>(pass) << ", stride " << stride);
      // Fewer than 16 channels with a stride of 1 here, not with 2.
      const bool is_padded = stride == 1 && pass != cuda::ConvPass::input_gradient;
      cuda::ConvProblem p = problem(pass, {13, 18, is_padded ? 3 : 32}, 48, stride, 6);
      p.bias = p.relu = pass == cuda::ConvPass::forward;
      CheckedKernel kernel(context, p);
      const cuda::SmallConv plan = cuda::plan_small_conv(p, 8).value();
      EXPECT_TRUE(kernel.accepts(plan));
      cuda::SmallConv part = plan;  // without its last tile
      --part.shape.tiles;
      EXPECT_FALSE(kernel.accepts(part));
      cuda::SmallConv shifted = plan;  // rows of the halo one pixel too long
      shifted.shape.by_halo_w.reciprocal = (1u << 20) / static_cast<unsigned>(plan.shape.halo_w + 1) + 1;
      EXPECT_FALSE(kernel.accepts(shifted));
      cuda::SmallConv fewer = plan;
      --fewer.shape.stored_channels;
      if (is_padded) {
        EXPECT_FALSE(kernel.accepts(fewer));
      }
      EXPECT_TRUE(kernel.accepts(plan));
    }
}

TEST(SmallConvPlan, CoversSmallConvolutionsAlone) {
  for (const cuda::ConvPass pass : passes) {
    const cuda::ConvProblem covered = problem(pass, {32, 32, 16}, 16);
    EXPECT_TRUE(cuda::plan_small_conv(covered, 8));
    EXPECT_TRUE(cuda::plan_small_conv(covered, 12));
    EXPECT_FALSE(cuda::plan_small_conv(covered, 7));
    const auto offered = [&](const auto& change) {
      cuda::ConvProblem p = covered;
      change(p);
      return cuda::plan_small_conv(p, 9).has_value();
    };
    EXPECT_FALSE(offered([](auto& p) { p.compute = Compute::tf32, p.type = DataType::f32; }));
    EXPECT_FALSE(offered([](auto& p) { p.compute = Compute::fp32, p.type = DataType::f32; }));
    EXPECT_FALSE(offered([](auto& p) { p.kernel = {5, 5}; }));
    EXPECT_FALSE(offered([](auto& p) { p.kernel = {3, 1}; }));
    EXPECT_FALSE(offered([](auto& p) { p.kernel = {1, 1}; }));
    EXPECT_FALSE(offered([](auto& p) { p.pad = {0, 1}; }));
    EXPECT_FALSE(offered([](auto& p) { p.stride = {2, 1}; }));
    EXPECT_FALSE(offered([](auto& p) { p.stride = {3, 3}; }));
    EXPECT_FALSE(offered([](auto& p) { p.groups = 2; }));
    for (const std::int64_t channels : {1, 3, 8, 15, 20, 24, 80, 128}) {
      const bool is_padded = channels < 16 && pass != cuda::ConvPass::input_gradient;
      EXPECT_EQ(offered([&](auto& p) { p.in[2] = channels; }), is_padded) << channels;
      EXPECT_FALSE(offered([&](auto& p) { p.out[2] = channels; })) << channels;
    }
  }
}

// Of the cases above.
TEST(SmallConvPlan, ManyImagesHaveMoreTilesThanBlocks) {
  for (const cuda::ConvPass pass : passes) {
    EXPECT_EQ(cuda::plan_small_conv(problem(pass, many_in, 16, 1, many), 8)->buffers, 2);
    for (const std::int64_t channels : {3, 16}) {
      if (channels < 16 && pass == cuda::ConvPass::input_gradient) continue;
      const auto of = [&](const OperationCase& c, std::int64_t stride) {
        return *cuda::plan_small_conv(problem(pass, c.inputs[0], c.output[2], stride, c.batch), 8);
      };
      const cuda::SmallConv warps = of(several_warps(channels), 2), images = of(several_images(channels), 1);
      EXPECT_EQ(warps.buffers, 2);
      EXPECT_GT(warps.threads, 32);
      EXPECT_GT(images.shape.images, 1);
      if (pass != cuda::ConvPass::input_gradient) {
        EXPECT_GT(images.threads, 32);
      }
      EXPECT_NE(161 % images.shape.images, 0);
    }
  }
}

// What the kernels rely on.
TEST(SmallConvPlan, TilesCoverTheImagesAndFit) {
  for (const auto& [h, w] :
       {std::pair{1, 1}, {8, 8}, {16, 16}, {32, 32}, {56, 56}, {7, 300}, {1, 5000}, {5000, 1}, {227, 131}})
    for (const std::int64_t channels : {3, 15, 16, 32, 48, 64})
      for (const std::int64_t filters : {16, 32, 48, 64})
        for (const std::int64_t stride : {1, 2})
          for (const std::int64_t batch : {1, 3, 128})
            for (const cuda::ConvPass pass : passes) {
              SCOPED_TRACE(fmt::format("{} x {} x {} x {} to {} stride {} pass {}", batch, h, w, channels,
                                       filters, stride, static_cast<int>(pass)));
              const auto plan =
                  cuda::plan_small_conv(problem(pass, {h, w, channels}, filters, stride, batch), 8);
              if (channels < 16 && pass == cuda::ConvPass::input_gradient) continue;
              ASSERT_TRUE(plan);
              const cuda::SmallConvShape& s = plan->shape;
              const int computed = static_cast<int>(std::max<std::int64_t>(channels, 16));
              EXPECT_EQ(pass == cuda::ConvPass::input_gradient ? s.out_channels : s.in_channels, computed);
              if (pass != cuda::ConvPass::input_gradient) {
                EXPECT_EQ(s.stored_channels, channels);
              }
              EXPECT_GE(s.tiles_y * s.tile_h, s.out_h);
              EXPECT_GE(s.tiles_x * s.tile_w, s.out_w);
              EXPECT_LT((s.tiles_y - 1) * s.tile_h, s.out_h);
              EXPECT_LT((s.tiles_x - 1) * s.tile_w, s.out_w);
              EXPECT_EQ(s.tiles, (batch + s.images - 1) / s.images * s.tiles_y * s.tiles_x);
              if (s.images > 1) {
                EXPECT_EQ(s.tiles_y * s.tiles_x, 1);
              }
              EXPECT_LE(s.pixels(), 512);
              EXPECT_LT(s.halo_pixels(), 1024);
              EXPECT_LE(plan->shared, 96 << 10);
              EXPECT_LE(plan->threads, 256);
              EXPECT_GE(plan->threads, 32);
              EXPECT_LE(plan->blocks, s.tiles);
              EXPECT_EQ(plan->buffers, s.tiles > plan->blocks ? 2 : 1);
              for (int n = 0; n < 1024; n += 7) {
                for (const auto& [by, d] : {std::pair{s.by_tile_w, s.tile_w},
                                            {s.by_tile_h, s.tile_h},
                                            {s.by_halo_w, s.halo_w},
                                            {s.by_halo_h, s.halo_h}})
                  ASSERT_EQ(static_cast<std::uint32_t>(n) * by.reciprocal >> 20,
                            static_cast<std::uint32_t>(n / d));
              }
            }
}

}  // namespace
}  // namespace lpsgd
