// The CPU backend's loops: bfloat16 rounds as it should, every instruction set gives the same bits, and the
// loops on bfloat16 are those on float32 between widening and rounding.
#include "nn/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/buffer.h"
#include "core/philox.h"

namespace lpsgd::cpu {
namespace {

/// Rounding by definition: of the two neighbours of |x| the nearer one, of equally near ones the even one.
std::uint16_t rounded(float x) {
  if (std::isnan(x)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto low = static_cast<std::uint16_t>((bits >> 16) & 0x7fff);
  // As if the exponent went on above the largest number, where bfloat16 has its infinity.
  const auto value = [](std::uint16_t h) {
    return h == 0x7f80 ? 0x1p128 : static_cast<double>(std::bit_cast<float>(std::uint32_t{h} << 16));
  };
  const double size = std::isinf(x) ? 0x1p128 : std::abs(static_cast<double>(x));
  const double below = size - value(low), above = low == 0x7f80 ? 1 : value(low + 1) - size;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<std::uint16_t>((bits >> 31 << 15) | static_cast<std::uint32_t>(low + up));
}

TEST(Kernels, BfloatRoundsToNearestEven) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000; ++high)
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Kernels* k : usable_kernels()) {
    SCOPED_TRACE(k->name);
    std::vector<Bf16> y(x.size());
    std::vector<float> back(x.size());
    k->bf16.narrow(x.data(), y.data(), n);
    k->bf16.widen(y.data(), back.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, rounded(x[i])) << std::hexfloat << x[i];
      ASSERT_EQ(narrow<Bf16>(x[i]).bits, y[i].bits) << std::hexfloat << x[i];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::uint32_t{y[i].bits} << 16);
    }
  }
}

/// What every loop writes, from inputs that both types can hold.
template <class T>
class Results {
 public:
  Results(const ActivationKernels<T>& k, std::int64_t width) : rows_(5), width_(width), n_(rows_ * width) {
    const std::vector<T> x = values(1), g = values(2), r = values(3);
    const std::vector<float> mean = floats(4), scale = floats(5), shift = floats(6), slope = floats(7);
    const NormConstants norm{mean.data(), scale.data(), shift.data()};
    k.row_moments(x.data(), rows_, width_, number(width_), number(width_));
    for (const bool relu : {false, true}) {
      k.normalize(x.data(), nullptr, out(), rows_, width_, width_, norm, relu, false);
      k.normalize(x.data(), r.data(), out(), rows_, width_, width_, norm, relu, false);
      k.norm_gradient_sums(g.data(), x.data(), rows_, width_, width_, norm, relu, number(width_),
                           number(width_));
      k.norm_gradient(g.data(), x.data(), out(), rows_, width_, width_, norm, relu, shift.data(),
                      slope.data());
      k.group_norm_gradient(g.data(), x.data(), out(), rows_, width_, norm, relu, shift.data(), slope.data());
      const std::array<const T*, 3> terms{x.data(), g.data(), r.data()};
      for (const int count : {1, 2, 3}) {
        k.sum(terms.data(), count, out(), n_, relu);
        k.scaled_sum(terms.data(), count, relu ? 0.3f : -1.7f, out(), n_);
        k.masked_sum(terms.data(), count, relu ? r.data() : nullptr, out(), n_);
      }
    }
    std::vector<T> image;
    for (const auto& pixel : {x, g, r}) image.insert(image.end(), pixel.begin(), pixel.end());
    const std::array<std::int64_t, 3> offsets{0, n_, 2 * n_};
    argmax.resize(static_cast<std::size_t>(n_));
    k.window_max(image.data(), offsets.data(), 3, n_, out(), argmax.data());
    for (std::size_t kind = 0; kind < activation_kinds; ++kind) {
      const std::array<const T*, 3> gradients{g.data(), r.data(), g.data()};
      k.activation[kind](x.data(), out(), n_);
      for (const int count : {1, 2, 3})
        k.activation_gradient[kind](gradients.data(), count, x.data(), out(), n_);
    }
    k.multiply(x.data(), r.data(), out(), rows_, width_);
    k.add_products(x.data(), g.data(), rows_, width_, number(width_));
    float* const centres = number(rows_);
    float* const deviations = number(rows_);
    k.layer_norm(x.data(), out(), rows_, width_, {slope.data(), shift.data(), 0.01f}, centres, deviations);
    k.layer_norm_gradient(g.data(), x.data(), out(), rows_, width_, slope.data(), centres, deviations,
                          number(width_), number(width_));
    std::vector<float> gates = floats(8, 4 * width_), before = floats(9), cells(before), dc = floats(10);
    k.lstm_cell(gates.data(), before.data(), cells.data(), out(), width_);
    std::vector<T> sums_gradient(gates.size());
    k.lstm_cell_gradient(gates.data(), before.data(), cells.data(), g.data(), dc.data(), sums_gradient.data(),
                         width_);
    outputs.insert(outputs.end(), sums_gradient.begin(), sums_gradient.end());
    for (const auto& v : {gates, cells, dc}) sums.insert(sums.end(), v.begin(), v.end());
    k.add_rows(x.data() + width_ / 3, rows_, width_, width_ - width_ / 3, number(width_ - width_ / 3));
    for (const std::int64_t label : {std::int64_t{0}, n_ / 2, n_ - 1}) {
      const SoftmaxRow row = k.softmax_row(x.data(), n_, label);
      k.softmax(x.data(), row.max, static_cast<float>(1 / row.sum), 0.01f, out(), n_);
      for (const double v : {static_cast<double>(row.max), row.sum, static_cast<double>(row.rank)})
        *number(1) = static_cast<float>(v);
    }
    for (const float beta : {0.75f, 0.6f}) {
      std::vector<float> scratch(static_cast<std::size_t>(4 * (width_ + 5)));
      const LrnConstants lrn{5, 0.3f, beta, 1.5f};
      k.lrn(x.data(), out(), rows_, width_, lrn, scratch.data());
      k.lrn_gradient(g.data(), x.data(), out(), rows_, width_, lrn, scratch.data());
    }
  }

  std::vector<T> outputs;
  std::vector<float> sums;
  std::vector<std::uint16_t> argmax;

 private:
  // Results are laid end to end; what a call writes is room for more of them.
  T* out() {
    outputs.resize(outputs.size() + static_cast<std::size_t>(n_));
    return outputs.data() + outputs.size() - n_;
  }
  float* number(std::int64_t n) {
    sums.reserve(100000);  // pointers to earlier numbers stay valid
    sums.resize(sums.size() + static_cast<std::size_t>(n));
    return sums.data() + sums.size() - n;
  }
  std::vector<float> floats(std::uint32_t stream, std::int64_t n = 0) const {
    PhiloxSequence draw(3, RandomUse::dataset, stream);
    std::vector<float> v(static_cast<std::size_t>(n > 0 ? n : width_));
    for (float& a : v) a = 4 * draw.uniform() - 2;
    return v;
  }
  std::vector<T> values(std::uint32_t stream) const {
    std::vector<T> v;
    for (const float a : floats(stream, n_)) v.push_back(lpsgd::narrow<T>(widen(lpsgd::narrow<Bf16>(a))));
    return v;
  }

  std::int64_t rows_, width_, n_;
};

std::vector<std::uint16_t> bits_of(const std::vector<Bf16>& v) {
  std::vector<std::uint16_t> out;
  for (const Bf16 x : v) out.push_back(x.bits);
  return out;
}
std::vector<std::uint16_t> rounded(const std::vector<float>& v) {
  std::vector<std::uint16_t> out;
  for (const float x : v) out.push_back(rounded(x));
  return out;
}

/// Past the cache, to aligned memory, which alone is written so; and to memory that is not.
TEST(Kernels, WhereNormsAreWrittenDoesNotMatter) {
  constexpr std::int64_t rows = 7;
  for (const std::int64_t width : {16, 48, 64, 96, 147, 1024, 1040}) {
    const auto n = static_cast<std::size_t>(rows * width);
    Buffer<float> x(n), r(n), plain(n), streamed(n + 1), constants(static_cast<std::size_t>(width));
    PhiloxSequence draw(3, RandomUse::dataset, 1);
    for (Buffer<float>* b : {&x, &r, &constants})
      for (float& a : b->view()) a = 4 * draw.uniform() - 2;
    const NormConstants norm{constants.data(), constants.data(), constants.data()};
    for (const Kernels* k : usable_kernels())
      for (const bool relu : {false, true})
        for (const float* residual :
             {static_cast<const float*>(nullptr), static_cast<const float*>(r.data())})
          for (const std::size_t offset : {0, 1}) {
            k->f32.normalize(x.data(), residual, plain.data(), rows, width, width, norm, relu, false);
            std::fill(streamed.view().begin(), streamed.view().end(), -9.0f);
            k->f32.normalize(x.data(), residual, streamed.data() + offset, rows, width, width, norm, relu,
                             true);
            EXPECT_TRUE(std::equal(plain.view().begin(), plain.view().end(), streamed.data() + offset))
                << k->name << ", " << width << " wide, offset " << offset;
          }
  }
}

/// Word e mod 4 of Philox block `block` + e / 4 decides about value e; counters wrap as unsigned numbers do.
TEST(Kernels, DropoutDrawsOneWordAValue) {
  const DropoutDraws draws({.seed = 11, .layer = 3, .first = 0}, 0.3);
  for (const Kernels* k : usable_kernels())
    for (const std::size_t n : {1u, 4u, 63u, 64u, 129u, 1000u})
      for (const std::uint32_t block : {0u, 5u, 0xfffffff0u}) {
        SCOPED_TRACE(std::string(k->name) + ", " + std::to_string(n) + " from " + std::to_string(block));
        std::vector<float> factors(n + 1, 9.0f);
        k->dropout_factors(draws, block, 70, 8, static_cast<std::int64_t>(n), factors.data());
        EXPECT_EQ(factors[n], 9.0f);
        for (std::size_t e = 0; e < n; ++e) {
          const Philox4x32 draw = philox4x32(block + static_cast<std::uint32_t>(e / 4), 70, 8, 3, 11, 5);
          ASSERT_EQ(factors[e], draw.x[e % 4] >= 0.3 * 0x1p32 ? static_cast<float>(1 / 0.7) : 0.0f) << e;
        }
        // Sums of two terms, in place; what is dropped is 0 whatever it was.
        std::vector<float> a(n), b(n, 2.0f);
        for (std::size_t e = 0; e < n; ++e)
          a[e] = factors[e] == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(e);
        const float* const terms[] = {a.data(), b.data()};
        k->f32.drop(factors.data(), terms, 2, a.data(), static_cast<std::int64_t>(n));
        for (std::size_t e = 0; e < n; ++e)
          ASSERT_EQ(a[e], factors[e] == 0 ? 0.0f : (static_cast<float>(e) + 2.0f) * factors[e]) << e;
      }
}

TEST(Kernels, EveryVariantGivesTheSameBitsInBothTypes) {
  for (const std::int64_t width : {1, 15, 16, 17, 64, 96, 147, 1043}) {
    const Results<float> first(kernels().f32, width);
    for (const Kernels* k : usable_kernels()) {
      SCOPED_TRACE(std::string(k->name) + ", " + std::to_string(width) + " wide");
      const Results<float> f32(k->f32, width);
      EXPECT_EQ(f32.outputs, first.outputs);
      EXPECT_EQ(f32.sums, first.sums);
      EXPECT_EQ(f32.argmax, first.argmax);
      const Results<Bf16> bf16(k->bf16, width);
      EXPECT_EQ(bits_of(bf16.outputs), rounded(first.outputs));
      EXPECT_EQ(bf16.sums, first.sums);
      EXPECT_EQ(bf16.argmax, first.argmax);
    }
  }
}

// Against sums in float64, for rows that lie in registers, in memory, and several together.
TEST(Kernels, SumsOverRowsAreThoseOfEachChannel) {
  for (const std::int64_t width : {5, 48, 64, 70, 256, 1024, 1043}) {
    for (const std::int64_t rows : {1, 3, 4, 18}) {
      PhiloxSequence draw(4, RandomUse::dataset, static_cast<std::uint32_t>(width));
      const auto n = static_cast<std::size_t>(rows * width), channels = static_cast<std::size_t>(width);
      std::vector<float> x(n), g(n), mean(channels, 300.0f), scale(channels, 0.5f), shift(channels, 0.1f);
      for (float& v : x) v = 300 + 4 * draw.uniform() - 2;  // a mean far from zero
      for (float& v : g) v = 4 * draw.uniform() - 2;
      for (const Kernels* k : usable_kernels()) {
        SCOPED_TRACE(std::string(k->name) + ", " + std::to_string(rows) + " by " + std::to_string(width));
        std::vector<float> sum(channels), m2(channels), sum_g(channels), sum_gx(channels);
        k->f32.row_moments(x.data(), rows, width, sum.data(), m2.data());
        k->f32.norm_gradient_sums(g.data(), x.data(), rows, width, width,
                                  {mean.data(), scale.data(), shift.data()}, true, sum_g.data(),
                                  sum_gx.data());
        for (std::size_t c = 0; c < channels; ++c) {
          double s = 0, q = 0, a = 0, b = 0;
          for (std::size_t r = c; r < n; r += channels) s += static_cast<double>(x[r]);
          for (std::size_t r = c; r < n; r += channels) {
            const double d = static_cast<double>(x[r]) - s / static_cast<double>(rows);
            const double centred = static_cast<double>(x[r]) - 300;
            q += d * d;
            if (centred * 0.5 + static_cast<double>(0.1f) <= 0) continue;
            a += static_cast<double>(g[r]);
            b += static_cast<double>(g[r]) * centred;
          }
          ASSERT_NEAR(static_cast<double>(sum[c]), s, 1e-6 * s) << c;
          ASSERT_NEAR(static_cast<double>(m2[c]), q, 1e-5 * (q + 1)) << c;
          ASSERT_NEAR(static_cast<double>(sum_g[c]), a, 1e-5 * static_cast<double>(rows)) << c;
          ASSERT_NEAR(static_cast<double>(sum_gx[c]), b, 1e-5 * static_cast<double>(rows)) << c;
        }
      }
    }
  }
}

// Against the definition, with many equal scores, for every position of the label in a vector and behind.
TEST(Kernels, SoftmaxRowsAreTheirDefinition) {
  for (const std::int64_t classes : {1, 7, 16, 17, 40, 64}) {
    PhiloxSequence draw(5, RandomUse::dataset, static_cast<std::uint32_t>(classes));
    std::vector<float> z(static_cast<std::size_t>(classes)), y(z.size());
    for (float& v : z) v = static_cast<float>(draw.below(5)) * 0.75f - 3;
    const double max = static_cast<double>(*std::max_element(z.begin(), z.end()));
    double sum = 0;
    for (const float v : z) sum += std::exp(static_cast<double>(v) - max);
    for (const Kernels* k : usable_kernels()) {
      SCOPED_TRACE(std::string(k->name) + ", " + std::to_string(classes) + " classes");
      for (std::int64_t label = 0; label < classes; ++label) {
        const float at = z[static_cast<std::size_t>(label)];
        std::int64_t rank = 0;
        for (std::int64_t c = 0; c < classes; ++c)
          rank += z[static_cast<std::size_t>(c)] > at || (z[static_cast<std::size_t>(c)] == at && c < label);
        const SoftmaxRow row = k->f32.softmax_row(z.data(), classes, label);
        EXPECT_EQ(static_cast<double>(row.max), max);
        EXPECT_NEAR(row.sum, sum, 1e-6 * sum);
        EXPECT_EQ(row.rank, rank) << label;
      }
      k->f32.softmax(z.data(), static_cast<float>(max), 0.5f, 0.125f, y.data(), classes);
      for (std::size_t c = 0; c < z.size(); ++c)
        EXPECT_NEAR(static_cast<double>(y[c]), 0.5 * std::exp(static_cast<double>(z[c]) - max) - 0.125, 1e-7);
    }
  }
}

/// Weights and their gradient against the definition, in double; every variant has the first one's bits.
TEST(Kernels, SoftmaxWeightsAreTheirDefinition) {
  for (const std::int64_t n : {1, 5, 16, 37, 300}) {
    for (const float scale : {0.125f, 3.0f}) {
      PhiloxSequence draw(6, RandomUse::dataset, static_cast<std::uint32_t>(n));
      std::vector<float> scores(static_cast<std::size_t>(n)), gradient(scores.size());
      for (float& v : scores) v = 8 * draw.uniform() - 4;
      for (float& v : gradient) v = 2 * draw.uniform() - 1;
      double sum = 0, mean = 0;
      for (const float v : scores) sum += std::exp(static_cast<double>(scale * v));
      const auto weight = [&](std::size_t i) {
        return std::exp(static_cast<double>(scale * scores[i])) / sum;
      };
      for (std::size_t i = 0; i < scores.size(); ++i) mean += weight(i) * static_cast<double>(gradient[i]);
      std::vector<float> first;
      for (const Kernels* k : usable_kernels()) {
        SCOPED_TRACE(std::string(k->name) + ", " + std::to_string(n) + " scores");
        std::vector<float> weights = scores, again = scores, change = gradient;
        const float log_sum = k->softmax_weights(weights.data(), n, scale);
        EXPECT_NEAR(static_cast<double>(log_sum), std::log(sum), 2e-6 * (1 + std::abs(std::log(sum))));
        k->softmax_weights_again(again.data(), n, scale, log_sum);
        k->softmax_weights_gradient(weights.data(), change.data(), n, scale);
        for (std::size_t i = 0; i < scores.size(); ++i) {
          EXPECT_NEAR(static_cast<double>(weights[i]), weight(i), 2e-6 * weight(i));
          EXPECT_NEAR(static_cast<double>(again[i]), weight(i), 5e-6 * weight(i));
          EXPECT_NEAR(static_cast<double>(change[i]),
                      weight(i) * (static_cast<double>(gradient[i]) - mean) * static_cast<double>(scale),
                      2e-6);
        }
        for (const auto* v : {&again, &change}) weights.insert(weights.end(), v->begin(), v->end());
        weights.push_back(log_sum);
        if (first.empty()) first = weights;
        EXPECT_EQ(weights, first);
      }
    }
  }
}

}  // namespace
}  // namespace lpsgd::cpu
