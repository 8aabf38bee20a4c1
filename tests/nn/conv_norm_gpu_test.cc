// A batch norm and the convolution that alone reads its output, by our own kernels: what the convolution does
// for the norm has the bits, or the sums, of the norm's own launches. With `deterministic` it always does it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/philox.h"
#include "nn/cuda/backend.h"
#include "nn/cuda/conv_norm.h"
#include "tests/nn/bf16_gpu_test.h"

namespace lpsgd {
namespace {

struct NormCase {
  std::int64_t batch = 2;
  Shape in{8, 8, 16};
  std::int64_t filters = 16, stride = 1;
  bool relu = true;
  float offset = 0;  // of the norm's input

  Shape out() const { return {(in[0] - 1) / stride + 1, (in[1] - 1) / stride + 1, filters}; }
  std::string name() const {
    return fmt::format("{} x {}x{}x{}, {} filters, stride {}{}", batch, in[0], in[1], in[2], filters, stride,
                       relu ? ", relu" : "");
  }
};

/// One array after the other, the same for every backend.
class NormDraws {
 public:
  std::vector<float> next(std::int64_t n, float from, float to) {
    PhiloxSequence sequence(7, RandomUse::dataset, which_++);
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& x : out) x = from + (to - from) * sequence.uniform();
    return out;
  }

 private:
  std::uint32_t which_ = 0;
};

struct NormResults {
  std::vector<float> x, output, input_gradient;  // of the norm; activations are bfloat16
  std::vector<float> weight_gradient, bias_gradient, running_mean;
};
struct PairResults {
  NormResults norm;
  // The convolution's.
  std::vector<float> output, evaluated, input_gradient, weight_gradient;
  std::vector<float> mean_behind, variance_behind;  // running statistics of the norm behind it
  std::vector<float> weight;                        // of the norm
  int joined = 0;
};

/// Two passes in training with backward, and one in evaluation. `recompute`: the norm's output is overwritten
/// before backward, and computed again.
PairResults run_pair(Backend& backend, const NormCase& c, bool has_one_reader, bool recompute = false) {
  backend.prepare_thread();
  NormDraws draws;
  const auto upload = [&](DataType type, const std::vector<float>& values) {
    void* data = backend.allocate(static_cast<std::int64_t>(values.size()) * size_of(type));
    backend.upload(data, type, values, nullptr);
    return data;
  };
  const auto count = [&](const Shape& shape) { return c.batch * elements_of(shape).value_or(0); };
  const auto zeros = [&](const Shape& shape) {
    return upload(DataType::bf16, std::vector<float>(static_cast<std::size_t>(count(shape))));
  };
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(c.batch), 0);
  const auto loss =
      backend.softmax_cross_entropy(DataType::bf16, backend.allocate(4 * c.batch), nullptr, {c.batch, 1, 2});

  const std::int64_t channels = c.in[2], weights = c.filters * 9 * channels;
  const TensorInfo norm_weight{"w", TensorKind::dense, {channels}, channels, 0};
  const TensorInfo norm_bias{"b", TensorKind::dense, {channels}, channels, channels};
  const TensorInfo filters{"f", TensorKind::dense, {c.filters, 3, 3, channels}, weights, 2 * channels};
  PairResults out;
  out.weight = draws.next(channels, 0.5f, 1.5f);
  out.weight.front() = -0.75f;
  const std::vector<float> bias = draws.next(channels, -0.5f, 0.5f);
  std::vector<float> arena = out.weight;
  arena.insert(arena.end(), bias.begin(), bias.end());
  const std::vector<float> more = draws.next(weights, -0.2f, 0.2f);
  arena.insert(arena.end(), more.begin(), more.end());
  arena.insert(arena.end(), static_cast<std::size_t>(2 * c.filters), 1);
  auto* const parameters = static_cast<float*>(upload(DataType::f32, arena));
  auto* const gradients = static_cast<float*>(upload(DataType::f32, std::vector<float>(arena.size())));
  backend.parameters({parameters, arena.size()});
  const auto view = [&](const TensorInfo& t) {
    return ParameterView{&t, parameters + t.offset, gradients + t.offset};
  };

  Binding norm;
  norm.batch = c.batch;
  norm.type = DataType::bf16;
  norm.shape = c.in;
  norm.relu = c.relu;
  norm.has_one_reader = has_one_reader;
  norm.inputs = {{c.in, DataType::bf16, zeros(c.in), zeros(c.in)}};
  norm.output = zeros(c.in);
  void* const between = zeros(c.in);  // the gradient of the norm's output
  norm.output_gradients = {between};
  norm.parameters = {view(norm_weight), view(norm_bias)};
  const auto buffers = [&](std::int64_t n) {
    std::vector<float*> all;
    for (int b = 0; b < 2; ++b)
      all.push_back(
          static_cast<float*>(upload(DataType::f32, std::vector<float>(static_cast<std::size_t>(n)))));
    return all;
  };
  norm.buffers = buffers(channels);
  Binding conv;
  conv.batch = c.batch;
  conv.type = DataType::bf16;
  conv.shape = c.out();
  conv.inputs = {{c.in, DataType::bf16, norm.output, between}};
  conv.output = zeros(c.out());
  void* const output_gradient = zeros(c.out());
  conv.output_gradients = {output_gradient};
  conv.parameters = {view(filters)};
  const std::unique_ptr<Op> first = backend.batch_norm(norm, {1e-5, 0.5});
  conv.input_source = first.get();
  const std::unique_ptr<Op> second =
      backend.conv(conv, {{3, 3}, {c.stride, c.stride}, {1, 1}, c.filters, 1, false});
  // Takes its statistics from the convolution.
  const TensorInfo behind_weight{"v", TensorKind::dense, {c.filters}, c.filters, 2 * channels + weights};
  const TensorInfo behind_bias{
      "a", TensorKind::dense, {c.filters}, c.filters, 2 * channels + weights + c.filters};
  Binding behind;
  behind.batch = c.batch;
  behind.type = DataType::bf16;
  behind.shape = c.out();
  behind.inputs = {{c.out(), DataType::bf16, conv.output, output_gradient}};
  behind.output = zeros(c.out());
  behind.output_gradients = {zeros(c.out())};
  behind.parameters = {view(behind_weight), view(behind_bias)};
  behind.buffers = buffers(c.filters);
  behind.input_source = second.get();
  const std::unique_ptr<Op> third = backend.batch_norm(behind, {1e-5, 0.5});
  backend.finish_planning();
  for (const std::string& choice : backend.choices()) out.joined += choice.ends_with("joined");

  const auto download = [&](DataType type, const void* from, std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(n));
    backend.download(values, type, from);
    return values;
  };
  const auto overwrite = [&](void* memory, std::int64_t n, std::vector<float> values) {
    values.resize(static_cast<std::size_t>(n));
    backend.upload(memory, DataType::bf16, values, nullptr);
  };
  auto* const x = const_cast<void*>(norm.inputs[0].value);
  for (int round = 0; round < 2; ++round) {
    overwrite(x, count(c.in), draws.next(count(c.in), c.offset - 1, c.offset + 1));
    overwrite(output_gradient, count(c.out()), draws.next(count(c.out()), -1, 1));
    const Pass pass{.training = true, .valid = c.batch};
    backend.begin(pass, labels);
    first->forward(pass);
    second->forward(pass);
    third->forward(pass);
    if (recompute) {
      overwrite(norm.output, count(c.in), {});
      first->recompute();
    }
    second->backward();
    first->backward();
  }
  out.norm.x = download(DataType::bf16, x, count(c.in));
  out.norm.output = download(DataType::bf16, norm.output, count(c.in));
  out.norm.input_gradient = download(DataType::bf16, norm.inputs[0].gradient, count(c.in));
  out.norm.weight_gradient = download(DataType::f32, norm.parameters[0].gradient, channels);
  out.norm.bias_gradient = download(DataType::f32, norm.parameters[1].gradient, channels);
  out.norm.running_mean = download(DataType::f32, norm.buffers[0], channels);
  out.mean_behind = download(DataType::f32, behind.buffers[0], c.filters);
  out.variance_behind = download(DataType::f32, behind.buffers[1], c.filters);
  out.output = download(DataType::bf16, conv.output, count(c.out()));
  out.input_gradient = download(DataType::bf16, between, count(c.in));
  out.weight_gradient = download(DataType::f32, conv.parameters[0].gradient, weights);
  const Pass evaluation{.training = false, .valid = c.batch};
  backend.begin(evaluation, labels);
  first->forward(evaluation);
  second->forward(evaluation);
  out.evaluated = download(DataType::bf16, conv.output, count(c.out()));
  return out;
}

std::vector<NormCase> norm_cases() {
  std::vector<NormCase> out{{3, {9, 13, 16}, 16},         {2, {13, 18, 32}, 32, 1, false},
                            {3, {7, 6, 64}, 64},          {2, {12, 11, 48}, 48, 1, true, 2},
                            {5, {9, 8, 16}, 32, 2},       {2, {8, 9, 64}, 16, 2, false, -3},
                            {2, {1, 1, 16}, 64},          {2, {5, 40, 32}, 16},
                            {1, {10, 10, 48}, 64},        {2, {6, 11, 16}, 48},
                            {2, {7, 9, 32}, 48, 1, true}, {5, {17, 19, 32}, 64}};
  out.push_back({258, {1, 170, 16}, 16});  // more tiles than blocks: two buffers in turn
  return out;
}

class ConvNormGpu : public Bf16GpuTest {
 protected:
  PairResults run(const NormCase& c, bool has_one_reader, bool recompute = false) const {
    return run_pair(*make_cuda_backend(device, Compute::bf16, true), c, has_one_reader, recompute);
  }
};

/// The gradients of the norm by its definition, in double, of what the convolution wrote. `output`: the
/// norm's.
struct NormTruth {
  std::vector<double> weight, bias, input;
};
NormTruth norm_by_definition(const NormCase& c, const PairResults& r, const std::vector<float>& output) {
  const auto channels = static_cast<std::size_t>(c.in[2]), rows = r.norm.x.size() / channels;
  const auto n = static_cast<double>(rows);
  NormTruth out;
  out.weight.resize(channels), out.bias.resize(channels), out.input.resize(r.norm.x.size());
  for (std::size_t k = 0; k < channels; ++k) {
    const auto over_rows = [&](const std::function<double(std::size_t)>& value) {
      double sum = 0;
      for (std::size_t i = k; i < r.norm.x.size(); i += channels) sum += value(i);
      return sum;
    };
    const auto x = [&](std::size_t i) { return static_cast<double>(r.norm.x[i]); };
    const double mean = over_rows(x) / n;
    const double variance = over_rows([&](std::size_t i) { return std::pow(x(i) - mean, 2); }) / n;
    const double inverse = 1 / std::sqrt(variance + 1e-5);
    const auto weight = static_cast<double>(r.weight[k]);
    const auto gradient = [&](std::size_t i) {
      const bool passes = !c.relu || output[i] > 0;
      return passes ? static_cast<double>(r.input_gradient[i]) : 0;
    };
    const double sum = over_rows(gradient);
    const double products = over_rows([&](std::size_t i) { return gradient(i) * (x(i) - mean) * inverse; });
    out.bias[k] = sum, out.weight[k] = products;
    for (std::size_t i = k; i < r.norm.x.size(); i += channels)
      out.input[i] = weight * inverse * (gradient(i) - sum / n - (x(i) - mean) * inverse * products / n);
  }
  return out;
}
double relative_distance(const std::vector<float>& values, const std::vector<double>& truth) {
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    errors += std::pow(static_cast<double>(values[i]) - truth[i], 2);
    squares += truth[i] * truth[i];
  }
  return std::sqrt(errors / squares);
}

// Sums in double of at most 16 values that were added in float32: 16 * 2^-24 of the sum of their magnitudes,
// which is some tens of times the sum. The gradient of the input is rounded to bfloat16.
constexpr double sums_bound = 3e-5, rounding_bound = 3e-3;

TEST_F(ConvNormGpu, DoesWhatTheNormWould) {
  for (const NormCase& c : norm_cases()) {
    SCOPED_TRACE(c.name());
    const PairResults joined = run(c, true), separate = run(c, false);
    EXPECT_EQ(joined.joined, 2);
    EXPECT_EQ(separate.joined, 0);
    EXPECT_TRUE(std::ranges::all_of(joined.norm.output, [](float y) { return y == 0; }));
    EXPECT_FALSE(std::ranges::all_of(separate.norm.output, [](float y) { return y == 0; }));
    EXPECT_EQ(joined.output, separate.output);
    EXPECT_EQ(joined.evaluated, separate.evaluated);
    EXPECT_NE(joined.evaluated, joined.output);
    EXPECT_EQ(joined.weight_gradient, separate.weight_gradient);
    EXPECT_EQ(joined.input_gradient, separate.input_gradient);
    EXPECT_EQ(joined.norm.running_mean, separate.norm.running_mean);
    EXPECT_EQ(joined.mean_behind, separate.mean_behind);
    EXPECT_EQ(joined.variance_behind, separate.variance_behind);

    const NormTruth truth = norm_by_definition(c, joined, separate.norm.output);
    EXPECT_LE(relative_distance(joined.norm.weight_gradient, truth.weight), sums_bound);
    EXPECT_LE(relative_distance(joined.norm.bias_gradient, truth.bias), sums_bound);
    EXPECT_LE(relative_distance(joined.norm.input_gradient, truth.input), rounding_bound);
  }
}

/// The gradient of such an input is cuDNN's.
class BatchNormOfFewChannelsGpu : public ConvNormGpu {};

TEST_F(BatchNormOfFewChannelsGpu, IsNotJoined) {
  const NormCase c{2, {8, 9, 8}, 16};
  const PairResults one_reader = run(c, true), others = run(c, false);
  EXPECT_EQ(one_reader.joined, 0);
  EXPECT_EQ(one_reader.output, others.output);
  EXPECT_EQ(one_reader.weight_gradient, others.weight_gradient);
  EXPECT_EQ(one_reader.norm.input_gradient, others.norm.input_gradient);
}

TEST_F(ConvNormGpu, GivesTheSameBitsAgainAndWithRecompute) {
  const NormCase c{3, {19, 17, 32}, 64};
  const PairResults once = run(c, true);
  for (const bool recompute : {false, true}) {
    const PairResults again = run(c, true, recompute);
    EXPECT_EQ(once.output, again.output);
    EXPECT_EQ(once.weight_gradient, again.weight_gradient);
    EXPECT_EQ(once.norm.input_gradient, again.norm.input_gradient);
    EXPECT_EQ(once.norm.weight_gradient, again.norm.weight_gradient);
    EXPECT_EQ(once.norm.bias_gradient, again.norm.bias_gradient);
  }
}

}  // namespace
}  // namespace lpsgd
