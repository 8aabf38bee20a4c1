// The reference that engines are checked with, against a convolution written as its definition.
#include "nn/cuda/conv_samples.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "nn/cuda/random_operand.h"

namespace lpsgd::cuda {
namespace {

/// All results of a pass, summed in double over every pair of an output pixel and a place in its window.
std::vector<double> convolve(const ConvProblem& p) {
  const auto value = [&](std::uint32_t tensor, std::int64_t i) {
    return static_cast<double>(random_four(p.type, tensor, i / 4).x[i % 4]);
  };
  const std::int64_t channels = p.in[2] / p.groups, filters = p.out[2] / p.groups;
  const std::int64_t sizes[] = {p.batch * p.out[0] * p.out[1] * p.out[2],
                                p.batch * p.in[0] * p.in[1] * p.in[2],
                                p.out[2] * p.kernel.h * p.kernel.w * channels};
  std::vector<double> out(static_cast<std::size_t>(sizes[static_cast<int>(p.pass)]));
  for (std::int64_t n = 0; n < p.batch; ++n)
    for (std::int64_t oh = 0; oh < p.out[0]; ++oh)
      for (std::int64_t ow = 0; ow < p.out[1]; ++ow)
        for (std::int64_t k = 0; k < p.out[2]; ++k)
          for (std::int64_t r = 0; r < p.kernel.h; ++r)
            for (std::int64_t s = 0; s < p.kernel.w; ++s)
              for (std::int64_t c = 0; c < channels; ++c) {
                const std::int64_t h = oh * p.stride.h + r - p.pad.h, w = ow * p.stride.w + s - p.pad.w;
                if (h < 0 || w < 0 || h >= p.in[0] || w >= p.in[1]) continue;
                const std::int64_t x =
                    ((n * p.in[0] + h) * p.in[1] + w) * p.in[2] + k / filters * channels + c;
                const std::int64_t y = ((n * p.out[0] + oh) * p.out[1] + ow) * p.out[2] + k;
                const std::int64_t f = ((k * p.kernel.h + r) * p.kernel.w + s) * channels + c;
                if (p.pass == ConvPass::forward)
                  out[static_cast<std::size_t>(y)] += value(conv_input, x) * value(conv_weights, f);
                else if (p.pass == ConvPass::input_gradient)
                  out[static_cast<std::size_t>(x)] += value(conv_output, y) * value(conv_weights, f);
                else if (has_gradient(p, n))
                  out[static_cast<std::size_t>(f)] += value(conv_output, y) * value(conv_input, x);
              }
  return out;
}

TEST(ConvSamples, AreTheDefinitions) {
  const auto problem = [](std::int64_t batch, Shape in, Size2 kernel, Size2 stride, Size2 pad,
                          std::int64_t filters, std::int64_t groups) {
    const Shape out{(in[0] + 2 * pad.h - kernel.h) / stride.h + 1,
                    (in[1] + 2 * pad.w - kernel.w) / stride.w + 1, filters};
    return ConvProblem{.batch = batch,
                       .in = in,
                       .out = out,
                       .kernel = kernel,
                       .stride = stride,
                       .pad = pad,
                       .groups = groups};
  };
  for (ConvProblem p : {problem(3, {7, 6, 3}, {3, 2}, {2, 1}, {1, 0}, 6, 1),
                        problem(2, {9, 9, 12}, {3, 3}, {1, 1}, {1, 1}, 12, 12),
                        problem(2, {8, 8, 16}, {5, 5}, {1, 1}, {2, 2}, 24, 2),
                        problem(5, {1, 1, 5}, {1, 1}, {1, 1}, {0, 0}, 7, 1),
                        problem(1, {11, 10, 2}, {3, 3}, {4, 3}, {0, 1}, 1, 1)})
    for (const ConvPass pass : {ConvPass::forward, ConvPass::input_gradient, ConvPass::weight_gradient}) {
      p.pass = pass;
      p.type = p.batch == 2 ? DataType::bf16 : DataType::f32;
      SCOPED_TRACE(testing::Message() << shape_text(p.in) << " pass " << static_cast<int>(pass));
      const std::vector<double> all = convolve(p);
      const ConvSamples samples = sample_convolution(p);
      ASSERT_EQ(samples.at.size(), samples.values.size());
      EXPECT_GE(samples.at.size(), 16u);
      for (std::size_t i = 0; i < samples.at.size(); ++i)
        ASSERT_NEAR(samples.values[i], all.at(static_cast<std::size_t>(samples.at[i])), 1e-12);
      ASSERT_EQ(samples.filters.size(), pass == ConvPass::forward ? samples.at.size() : 0);
      for (std::size_t i = 0; i < samples.filters.size(); ++i)
        ASSERT_EQ(samples.filters[i], samples.at[i] % p.out[2]);
    }
}

TEST(ConvSamples, CoverChannelsAndBorders) {
  ConvProblem p{
      .batch = 4, .in = {16, 16, 64}, .out = {16, 16, 64}, .kernel = {3, 3}, .stride = {1, 1}, .pad = {1, 1}};
  const ConvSamples samples = sample_convolution(p);
  std::set<std::int64_t> filters(samples.filters.begin(), samples.filters.end());
  EXPECT_EQ(filters.size(), 64u);
  int borders = 0, corners = 0;
  for (const std::int64_t at : samples.at) {
    const std::int64_t w = at / 64 % 16, h = at / 1024 % 16;
    const bool edge_h = h == 0 || h == 15, edge_w = w == 0 || w == 15;
    borders += edge_h || edge_w;
    corners += edge_h && edge_w;
  }
  EXPECT_GT(borders, 64);
  EXPECT_GT(corners, 8);
  EXPECT_LT(borders, 192);
  p.pass = ConvPass::weight_gradient;
  const ConvSamples weights = sample_convolution(p);
  std::int64_t low = 64 * 9 * 64, high = 0;
  for (const std::int64_t at : weights.at) low = std::min(low, at), high = std::max(high, at);
  EXPECT_LT(low, 9 * 64 * 4);
  EXPECT_GE(high, 60 * 9 * 64);
}

// Of large images few have a gradient in the reference, the last one among them.
TEST(ConvSamples, AWeightGradientHasLimitedTerms) {
  ConvProblem p;
  p.pass = ConvPass::weight_gradient;
  p.batch = 32;
  p.out = {224, 224, 64};
  int with = 0;
  for (std::int64_t n = 0; n < p.batch; ++n) with += has_gradient(p, n);
  EXPECT_EQ(with, 5);
  EXPECT_TRUE(has_gradient(p, 31));
  p.out = {512, 513, 8};
  with = 0;
  for (std::int64_t n = 0; n < p.batch; ++n) with += has_gradient(p, n);
  EXPECT_EQ(with, 1);
  p.out = {7, 7, 512};
  for (std::int64_t n = 0; n < p.batch; ++n) EXPECT_TRUE(has_gradient(p, n));
}

}  // namespace
}  // namespace lpsgd::cuda
