// Winograd's loops: every instruction set gives the same bits, and products are those of their definition.
// That the loops compute convolutions is tested in operations_test.cc, against the definition in double.
#include "nn/cpu/winograd.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace lpsgd::cpu::winograd {
namespace {

constexpr std::int64_t channels = 32, filters = 48, images = 2;
constexpr Tiles read{9, 7, channels, 3, 2, 1, 1}, write{9, 7, filters, 3, 2, 0, 0};
constexpr std::int64_t tiles = images * 3 * 2, stride = block_tiles * filters + 16;
static_assert(tiles == block_tiles);

std::vector<float> values(std::int64_t n, std::uint32_t seed) {
  PhiloxSequence draws(seed, RandomUse::dataset, 0);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& v : out) v = draws.uniform() - 0.5f;
  return out;
}

/// What every loop writes: a convolution step by step, and the gradient of its weights.
std::vector<std::vector<float>> results(const Kernels& k) {
  const auto zeros = [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); };
  const std::vector<float> x = values(images * 9 * 7 * channels, 1), dy = values(images * 9 * 7 * filters, 2),
                           w = values(filters * 9 * channels, 3), bias = values(filters, 4);
  std::vector<float> u = zeros(points * channels * filters), turned = u, sums = u, v = zeros(points * stride),
                     z = v, m = v, y = zeros(images * 9 * 7 * filters), rectified = y,
                     dw = zeros(filters * 9 * channels);
  k.transform_weights(w.data(), filters, channels, 0, filters, u.data());
  k.transform_turned_weights(w.data(), filters, channels, 0, filters, turned.data());
  k.transform_input(x.data(), read, 0, tiles, v.data(), stride);
  k.transform_gradient(dy.data(), write, 0, tiles, z.data(), stride);
  for (std::int64_t p = 0; p < points; ++p) {
    const std::int64_t at = p * channels * filters;
    k.product(v.data() + p * stride, u.data() + at, m.data() + p * stride, channels, filters);
    k.add_product(v.data() + p * stride, z.data() + p * stride, tiles - 1, sums.data() + at, channels,
                  filters);
    k.add_product(v.data() + p * stride, z.data() + p * stride, 1, sums.data() + at, channels, filters);
  }
  k.transform_output(m.data(), stride, write, 0, tiles, nullptr, false, y.data());
  k.transform_output(m.data(), stride, write, 0, tiles, bias.data(), true, rectified.data());
  k.transform_weight_gradient(sums.data(), filters, channels, 0, filters, dw.data());
  return {u, turned, v, z, m, sums, y, rectified, dw};
}

TEST(Winograd, EveryInstructionSetGivesTheSameBits) {
  const std::span<const Kernels* const> usable = usable_kernels();
  if (usable.size() < 2) GTEST_SKIP() << "this machine can run " << usable.size() << " of the variants";
  const auto expected = results(*usable[0]);
  for (const Kernels* k : usable.subspan(1)) EXPECT_EQ(results(*k), expected) << k->name;
}

/// Numbers of channels for which loops are compiled by themselves, and others.
constexpr std::int64_t shapes[][2] = {{16, 16}, {32, 32}, {64, 64}, {32, 48}, {64, 16}, {48, 80}};

/// c (m, n) += a (m, k) b (k, n); a's value (i, j) is at i * row + j * step.
void add_by_definition(std::int64_t m, std::int64_t n, std::int64_t k, const std::vector<float>& a,
                       std::int64_t row, std::int64_t step, const std::vector<float>& b,
                       std::vector<double>& c) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < k; ++j)
      for (std::int64_t o = 0; o < n; ++o)
        c[static_cast<std::size_t>(i * n + o)] +=
            static_cast<double>(a[static_cast<std::size_t>(i * row + j * step)]) *
            static_cast<double>(b[static_cast<std::size_t>(j * n + o)]);
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected,
                 const std::string& of) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(static_cast<double>(found[i]), expected[i], 2e-5) << of << ", value " << i;
}

TEST(Winograd, ProductsAreTheirDefinition) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> first;  // results by shape
  for (const Kernels* k : usable_kernels())
    for (const auto& [in, out] : shapes) {
      const std::string of = fmt::format("{}, {} to {}", k->name, in, out);
      const std::vector<float> v = values(block_tiles * in, 1), u = values(in * out, 2);
      std::vector<float> m(static_cast<std::size_t>(block_tiles * out));
      std::vector<double> expected(m.size());
      add_by_definition(block_tiles, out, in, v, in, 1, u, expected);
      k->product(v.data(), u.data(), m.data(), in, out);
      expect_near(m, expected, of);
      std::vector<float> of_all = m;
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{12}, std::int64_t{36}}) {
        const std::vector<float> rows = values(count * in, 3), z = values(count * out, 4);
        std::vector<float> sums = values(in * out, 5);
        std::vector<double> all(sums.begin(), sums.end());
        add_by_definition(in, out, count, rows, 1, in, z, all);
        k->add_product(rows.data(), z.data(), count, sums.data(), in, out);
        expect_near(sums, all, fmt::format("{}, {} rows", of, count));
        of_all.insert(of_all.end(), sums.begin(), sums.end());
      }
      EXPECT_EQ(first.try_emplace({in, out}, of_all).first->second, of_all)
          << of << ", beside the first one's";
    }
}

}  // namespace
}  // namespace lpsgd::cpu::winograd
