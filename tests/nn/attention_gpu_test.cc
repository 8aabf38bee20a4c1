// What attention does on the GPU alone: its kernels against their definition in double, for rows of every
// length that has a kernel of its own; and groups of heads.
//
// Bounds. An exponential is exact to one unit in the last place of float32 of its result, and its argument,
// below 40, to 40 * 2^-24 or less, which is the relative error of a weight; with the sum's rounding 1e-5. A
// gradient has that error relative to its largest term. bfloat16 adds 2^-8 when it is stored.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/philox.h"
#include "nn/cuda/context.h"
#include "tests/core/gpu_test.h"
#include "tests/nn/operation_cases.h"

namespace lpsgd {
namespace {

class AttentionGpu : public GpuTest {
 protected:
  static constexpr double bound = 1e-5, rounding = 0x1p-8;
  static constexpr float nowhere = 99;  // in memory that nothing may write

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  static constexpr DataType type_of(float) { return DataType::f32; }
  static constexpr DataType type_of(Bf16) { return DataType::bf16; }
  /// Values below `range` that are exact in bfloat16.
  static std::vector<float> draw(std::int64_t n, std::uint32_t which, float range) {
    PhiloxSequence sequence(13, RandomUse::dataset, which);
    std::vector<float> out(size(n));
    for (float& x : out) x = widen(narrow<Bf16>((2 * sequence.uniform() - 1) * range));
    return out;
  }

  template <class T>
  DeviceBuffer<T> holding(const std::vector<T>& values) {
    DeviceBuffer<T> out(device, values.size());
    copy_values<T>(out.view(), values, stream());
    return out;
  }
  template <class T>
  DeviceBuffer<T> narrowed(const std::vector<float>& values) {
    std::vector<T> low(values.size());
    std::ranges::transform(values, low.begin(), [](float x) { return narrow<T>(x); });
    return holding(low);
  }
  template <class T>
  std::vector<float> widened(const T* there, std::size_t n) {
    std::vector<T> low(n);
    copy_bytes(low.data(), there, n * sizeof(T), stream());
    stream().synchronize();
    std::vector<float> out(n);
    std::ranges::transform(low, out.begin(), [](T x) { return widen(x); });
    return out;
  }
  template <class T>
  void check_kernels(std::int64_t frames, bool causal, double dropout = 0);
  template <class T>
  void check_copies(std::int64_t width, std::int64_t beside);

  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_.emplace(device);
  }
  StreamView stream() const { return *stream_; }
  cudaStream_t handle() const { return stream().handle(); }

 private:
  std::optional<Stream> stream_;
};

// Two samples of one head. In float32 the weights are written over the scores, and their gradients over those
// of the weights, as the operation has it. Scores that do not count are so large that no other would.
template <class T>
void AttentionGpu::check_kernels(std::int64_t frames, bool causal, double dropout) {
  SCOPED_TRACE(fmt::format("{} frames{}, {} bytes, dropout {}", frames, causal ? ", causal" : "",
                           static_cast<int>(sizeof(T)), dropout));
  const ScopedDevice scope(device);
  const std::int64_t padded = (frames + 7) / 8 * 8, all = 2 * padded * padded;
  const cuda::AttentionShape shape{.batch = 2,
                                   .heads = 1,
                                   .frames = static_cast<int>(frames),
                                   .width = 6,
                                   .padded_frames = static_cast<int>(padded),
                                   .padded_width = 8,
                                   .causal = causal};
  const std::vector<std::int32_t> lengths{std::numeric_limits<std::int32_t>::max(),
                                          static_cast<std::int32_t>((frames + 1) / 2)};
  std::vector<float> scores = draw(all, 1, 20), gradients = draw(all, 2, 1);
  const auto keys_of = [&](std::int64_t row) {
    const std::int64_t t = row % padded, length = row < padded ? frames : lengths[1];
    return t >= length ? 0 : causal ? t + 1 : length;
  };
  for (std::int64_t row = 0; row < 2 * padded; ++row)
    std::fill(scores.begin() + row * padded + keys_of(row), scores.begin() + (row + 1) * padded, 1e4f);
  DeviceBuffer<float> scores_there = holding(scores), gradients_there = holding(gradients);
  DeviceBuffer<float> again = holding(scores);
  const DeviceBuffer<std::int32_t> lengths_there = holding(lengths);
  DeviceBuffer<float> log_sums(device, size(2 * frames));
  DeviceBuffer<T> low_weights = narrowed<T>(std::vector<float>(size(all), nowhere)),
                  low_gradients(device, size(all));
  constexpr bool in_place = std::is_same_v<T, float>;
  void* weights = in_place ? static_cast<void*>(scores_there.data()) : low_weights.data();
  void* score_gradients = in_place ? static_cast<void*>(gradients_there.data()) : low_gradients.data();
  const cuda::HeadRange range{0, 2};
  const DeviceBuffer<cuda::PassState> pass = holding<cuda::PassState>({{.step = 11, .first = 2}});
  cuda::WeightDropout drop;
  if (dropout > 0) drop = {DropoutDraws({.seed = 7, .layer = 4, .first = 5}, dropout), pass.data()};
  check(cuda::launch_attention_weights(type_of(T{}), shape, range, drop, lengths_there.data(),
                                       scores_there.data(), weights, log_sums.data(), handle()));
  const std::vector<float> first = widened(static_cast<const T*>(weights), size(all));
  void* weights_again = in_place ? static_cast<void*>(again.data()) : low_weights.data();
  check(cuda::launch_attention_gradient(type_of(T{}), shape, range, drop, lengths_there.data(), again.data(),
                                        gradients_there.data(), log_sums.data(), weights_again,
                                        score_gradients, handle()));
  const std::vector<float> second = widened(static_cast<const T*>(weights_again), size(all));
  const std::vector<float> got = widened(static_cast<const T*>(score_gradients), size(all));
  const double stored = in_place ? 0 : rounding, scale = 1 / std::sqrt(6.0);
  double worst = 0, worst_gradient = 0;
  std::int64_t wrong_zeros = 0;
  const auto note = [](double& at, float value, double expected, double allowed) {
    const double off = std::abs(static_cast<double>(value) - expected) / allowed;
    if (!(off <= at)) at = off;  // a NaN is the worst
  };
  std::vector<double> p(size(padded)), factor(size(padded), 1);
  for (std::int64_t row = 0; row < 2 * padded; ++row) {
    const std::int64_t keys = keys_of(row);
    const float *s = scores.data() + row * padded, *g = gradients.data() + row * padded;
    for (std::int64_t k = 0; dropout > 0 && k < keys; ++k) {
      const std::int64_t t = row % padded, block = t * ((frames + 3) / 4) + k / 4;
      const Philox4x32 draw = philox4x32(static_cast<std::uint32_t>(block),
                                         static_cast<std::uint32_t>(7 + row / padded), 11, 4, 7, 5);
      factor[size(k)] = draw.x[k % 4] >= dropout * 0x1p32 ? 1 / (1 - dropout) : 0;
    }
    double sum = 0, products = 0, largest = 0;
    for (std::int64_t k = 0; k < keys; ++k) sum += p[size(k)] = std::exp(scale * static_cast<double>(s[k]));
    for (std::int64_t k = 0; k < keys; ++k) {
      p[size(k)] /= sum;
      products += p[size(k)] * factor[size(k)] * static_cast<double>(g[k]);
    }
    largest = 1 / (1 - dropout) + std::abs(products);
    for (std::int64_t k = 0; k < padded; ++k) {
      const std::size_t i = size(row * padded + k);
      if (k >= keys) {
        wrong_zeros += first[i] != 0 || second[i] != 0 || got[i] != 0;
        continue;
      }
      const double weight = p[size(k)] * factor[size(k)];
      wrong_zeros += weight == 0 && (first[i] != 0 || second[i] != 0);
      note(worst, first[i], weight, p[size(k)] * (bound + stored) * factor[size(k)] + 1e-30);
      note(worst, second[i], weight, p[size(k)] * (bound + stored) * factor[size(k)] + 1e-30);
      const double expected = scale * p[size(k)] * (factor[size(k)] * static_cast<double>(g[k]) - products);
      note(worst_gradient, got[i], expected,
           scale * p[size(k)] * largest * 2 * bound + std::abs(expected) * stored);
    }
  }
  EXPECT_LE(worst, 1);
  EXPECT_LE(worst_gradient, 1);
  EXPECT_EQ(wrong_zeros, 0);
}

TEST_F(AttentionGpu, WeightsAndGradientsAreTheirDefinition) {
  for (const std::int64_t frames : {1, 7, 33, 128, 129, 250, 300, 700, 1024, 1030})
    for (const bool causal : {false, true}) {
      check_kernels<float>(frames, causal);
      if (!unsupported(Compute::bf16, device)) check_kernels<Bf16>(frames, causal);
      check_kernels<float>(frames, causal, 0.25);
      if (!unsupported(Compute::bf16, device)) check_kernels<Bf16>(frames, causal, 0.25);
    }
}

// Rows to matrices and back, of pairs that begin within a sample. What lies beside the rows' values stays.
template <class T>
void AttentionGpu::check_copies(std::int64_t width, std::int64_t beside) {
  SCOPED_TRACE(
      fmt::format("heads of {} and {} beside, {} bytes", width, beside, static_cast<int>(sizeof(T))));
  const ScopedDevice scope(device);
  constexpr std::int64_t batch = 3, heads = 2, frames = 5, padded_frames = 8;
  const std::int64_t padded_width = (width + 7) / 8 * 8, stride = heads * width + beside;
  const cuda::AttentionShape shape{.batch = batch,
                                   .heads = heads,
                                   .frames = frames,
                                   .width = static_cast<int>(width),
                                   .padded_frames = padded_frames,
                                   .padded_width = static_cast<int>(padded_width)};
  const std::vector<std::int32_t> lengths{5, 2, 4};
  const cuda::HeadRange range{1, 4};
  const std::int64_t matrix = padded_frames * padded_width, rows = batch * frames * stride;
  const std::vector<float> x = draw(rows, 3, 1), y = draw(rows, 4, 1);
  const DeviceBuffer<T> x_there = narrowed<T>(x), y_there = narrowed<T>(y);
  DeviceBuffer<T> matrices = narrowed<T>(std::vector<float>(size(2 * range.count * matrix), nowhere));
  DeviceBuffer<T> back = narrowed<T>(std::vector<float>(size(rows), nowhere));
  const DeviceBuffer<std::int32_t> lengths_there = holding(lengths);
  T* const second = matrices.data() + range.count * matrix;
  const cuda::HeadCopies split{{{x_there.data(), matrices.data(), stride}, {y_there.data(), second, stride}},
                               2};
  check(cuda::launch_split_heads(type_of(T{}), shape, range, split, lengths_there.data(), handle()));
  const cuda::HeadCopies join{{{second, back.data(), stride}}, 1};
  check(cuda::launch_join_heads(type_of(T{}), shape, range, join, handle()));
  const std::vector<float> got = widened(matrices.data(), matrices.size()),
                           joined = widened(back.data(), back.size());
  std::int64_t wrong = 0;
  std::vector<float> expected(size(rows), nowhere);
  for (std::int64_t i = 0; i < 2 * range.count * matrix; ++i) {
    const std::int64_t pair = range.first + i / matrix % range.count, n = pair / heads, h = pair % heads;
    const std::int64_t t = i % matrix / padded_width, c = i % padded_width;
    const bool is_second = i >= range.count * matrix, inside = c < width && t < lengths[size(n)];
    const std::size_t at = size((n * frames + std::min(t, frames - 1)) * stride + h * width + c % width);
    const float value = inside ? (is_second ? y : x)[at] : 0.0f;
    wrong += got[size(i)] != value;
    if (is_second && c < width && t < frames) expected[at] = value;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(joined, expected);
}

TEST_F(AttentionGpu, HeadsBecomeMatricesAndRowsAgain) {
  for (const auto& [width, beside] : {std::pair{8, 0}, {8, 16}, {16, 3}, {4, 0}, {5, 0}, {12, 4}, {1, 1}}) {
    check_copies<float>(width, beside);
    if (!unsupported(Compute::bf16, device)) check_copies<Bf16>(width, beside);
  }
}

// Few scores in memory at once: several groups, of which the last begins in the one before it. Of three
// inputs one needs no gradient. Behind each array lies another sample, which nothing may write.
TEST_F(AttentionGpu, GroupsOfHeadsChangeNothing) {
  constexpr std::int64_t batch = 5, frames = 9, heads = 3, features = 15;
  constexpr std::int64_t n = (batch + 1) * frames * features;
  const auto run = [&](std::int64_t scores_at_once, int without_gradient) {
    cuda::Context context(device, Compute::fp32, true, 1);
    context.score_bytes = scores_at_once * 2 * 16 * 16 * static_cast<std::int64_t>(sizeof(float));
    const std::vector<std::int32_t> lengths{9, 4, 1, 0, 8, 9};
    const DeviceBuffer<std::int32_t> lengths_there = holding(lengths);
    context.lengths = lengths_there.data();
    Binding b;
    b.batch = batch;
    b.shape = {frames, features};
    std::vector<DeviceBuffer<float>> memory;
    for (std::uint32_t i = 0; i < 5; ++i) memory.push_back(holding(draw(n, 10 + i, 2)));
    memory[3] = holding(std::vector<float>(size(n), nowhere));
    for (std::size_t i = 0; i < 3; ++i)
      b.inputs.push_back({b.shape, DataType::f32, memory[i].data(), nullptr});
    b.output = memory[3].data();
    b.output_gradients = {memory[4].data()};
    std::vector<DeviceBuffer<float>> gradients;
    for (std::size_t i = 0; i < 3; ++i) {
      gradients.push_back(holding(std::vector<float>(size(n), nowhere)));
      if (static_cast<int>(i) != without_gradient) b.inputs[i].gradient = gradients[i].data();
    }
    stream().synchronize();
    const std::unique_ptr<Op> op = cuda::make_attention(context, b, {heads, true});
    context.finish_planning();
    const Pass pass{.training = true, .valid = batch, .lengths = lengths};
    op->forward(pass);
    op->backward();
    context.stream.synchronize();
    Results out{{"output", widened(memory[3].data(), size(n))}};
    for (std::size_t i = 0; i < 3; ++i)
      out[fmt::format("input {}", i)] = widened(gradients[i].data(), size(n));
    const std::string batches = fmt::format("batch of {}", scores_at_once < 15 ? 4 : 15);
    EXPECT_TRUE(std::ranges::all_of(context.choices, [&](const std::string& choice) {
      return choice.find(batches) != std::string::npos;
    }));
    for (const auto& [name, values] : out)
      EXPECT_TRUE(std::all_of(values.end() - frames * features, values.end(), [](float x) {
        return x == nowhere;
      })) << name;
    return out;
  };
  const ScopedDevice scope(device);
  const Results at_once = run(100, -1);
  EXPECT_LE(worst_distance(run(4, -1), at_once).value, 1e-6);
  for (int without = 0; without < 3; ++without) {
    Results expected = at_once;
    std::ranges::fill(expected.at(fmt::format("input {}", without)), nowhere);
    EXPECT_LE(worst_distance(run(4, without), expected).value, 1e-6) << without;
  }
}

}  // namespace
}  // namespace lpsgd
