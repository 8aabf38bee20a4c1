// Properties that hold for every codec and instruction set.
#include "quant/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/philox.h"
#include "quant/codec_math_device.h"
#include "quant/codecs/qsgd_device.h"
#include "quant/cpu_codec.h"
#include "tests/quant/codec_cases.h"
#include "tests/quant/slow_codec.h"

namespace lpsgd {
namespace {

using namespace codec_cases;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr CodingContext context{.seed = 9, .tensor = 3, .step = 7, .rank = 1, .round = 1};

struct Encoded {
  Bytes bytes;
  std::vector<float> residual;
  std::vector<float> decoded;
  bool finite = false;
};

Encoded encode(const Codec& codec, const std::vector<float>& values, const std::vector<float>& residual,
               std::int64_t bucket, const CodingContext& c = context) {
  Encoded out;
  const auto n = static_cast<std::int64_t>(values.size());
  out.bytes.resize(codec.encoded_bytes(n, bucket));
  out.residual = residual;
  out.decoded.resize(values.size());
  out.finite = codec.encode(values.data(), residual.empty() ? nullptr : out.residual.data(), n, 0, bucket, c,
                            out.bytes.data());
  codec.decode(out.bytes.data(), n, bucket, false, out.decoded.data());
  return out;
}

void expect_slow(const std::string& text, const Codec& codec, const std::vector<float>& values,
                 const std::vector<float>& residual, std::int64_t bucket, const slow::Coded& expected) {
  const Encoded got = encode(codec, values, residual, bucket);
  const auto n = values.size();
  ASSERT_TRUE(same_bytes(got.bytes, expected.bytes)) << text << " n " << n;
  ASSERT_TRUE(same_bytes(got.decoded, expected.decoded)) << text << " n " << n;
  if (!residual.empty()) {
    ASSERT_TRUE(same_bytes(got.residual, expected.residual)) << text << " n " << n;
  }
  ASSERT_EQ(got.finite, expected.finite) << text << " n " << n;
}

TEST(Codec, EveryInstructionSetGivesTheSlowReferencesBytes) {
  for (const std::string& text : all_specs())
    for (const std::int64_t n : lengths())
      for (int kind = 0; kind < kinds; ++kind)
        for (const bool feedback : {false, true}) {
          const CodecSpec spec = spec_of(text);
          const std::vector<float> values = inputs(n, kind);
          const std::vector<float> residual = feedback ? inputs(n, 0, 2) : std::vector<float>();
          const std::int64_t bucket = bucket_of(*make_codec(spec), n);
          const slow::Coded expected = slow::encode(spec, values, residual, bucket, context);
          for (const CpuIsa isa : cpu_isas()) {
            SCOPED_TRACE(std::string(to_text(isa)) + " kind " + std::to_string(kind));
            expect_slow(text, *make_cpu_codec(spec, isa), values, residual, bucket, expected);
            if (HasFatalFailure()) return;
          }
        }
}

TEST(Codec, TenMillionValues) {
  const std::int64_t n = 10'000'019;  // a prime
  std::vector<float> values = inputs(n, 0), residual = inputs(n, 0, 2);
  for (std::size_t i = 0; i < values.size(); i += 100'003) values[i] = std::ldexp(values[i], 12);
  std::vector<std::string> texts = all_specs();
  texts.insert(texts.end(),
               {"{kind: qsgd, bits: 8, norm: l2, bucket: tensor}", "{kind: topk, bucket: tensor}"});
  for (const std::string& text : texts) {
    const CodecSpec spec = spec_of(text);
    const std::int64_t bucket = bucket_of(*make_codec(spec), n);
    const slow::Coded expected = slow::encode(spec, values, residual, bucket, context);
    for (const CpuIsa isa : cpu_isas()) {
      expect_slow(text, *make_cpu_codec(spec, isa), values, residual, bucket, expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Codec, PiecesEncodeAsTheWhole) {
  for (const std::string& text : all_specs()) {
    const auto codec = make_codec(spec_of(text));
    const std::int64_t n = 40000;
    const std::int64_t bucket = bucket_of(*codec, n);
    const std::vector<float> values = inputs(n, 0);
    const Encoded whole = encode(*codec, values, inputs(n, 0, 2), bucket);
    for (const std::int64_t buckets : {1, 3}) {
      const std::int64_t piece = buckets * bucket;
      Bytes bytes;
      std::vector<float> residual = inputs(n, 0, 2);
      const std::size_t table_bytes = codec->table_bytes();
      Bytes table(table_bytes + 1);
      codec->make_table(values.data(), residual.data(), n, bucket, table.data());
      CodingContext given = context;
      given.table = table.data();
      for (std::int64_t at = 0; at < n; at += piece) {
        const std::int64_t m = std::min(piece, n - at);
        Bytes part(codec->encoded_bytes(m, bucket));
        codec->encode(values.data() + at, residual.data() + at, m, at, bucket, given, part.data());
        const auto records = part.begin() + static_cast<std::ptrdiff_t>(at == 0 ? 0 : table_bytes);
        bytes.insert(bytes.end(), records, part.end());
      }
      EXPECT_TRUE(same_bytes(bytes, whole.bytes)) << text;
      EXPECT_TRUE(same_bytes(residual, whole.residual)) << text;
    }
  }
}

TEST(Codec, DecodedPlusResidualIsTheValue) {
  for (const std::string& text : all_specs())
    for (int kind = 0; kind < 5; ++kind) {
      const auto codec = make_codec(spec_of(text));
      const std::int64_t n = 3001;
      const std::vector<float> values = inputs(n, kind), residual = inputs(n, kind, 2);
      const Encoded e = encode(*codec, values, residual, bucket_of(*codec, n));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float v = values[i] + residual[i];
        const float q = e.decoded[i];
        if (std::isinf(q)) continue;  // beyond fp16's range
        ASSERT_EQ(e.residual[i], v - q) << text;
        // To one rounding of the residual: half a unit in its last place.
        const double error = std::fabs(static_cast<double>(q) + e.residual[i] - v);
        ASSERT_LE(error, std::max(std::fabs(e.residual[i]) * 0x1p-24, 0x1p-150)) << text << ' ' << kind;
      }
    }
}

TEST(Codec, BucketsWithoutNumbersTravelAsNan) {
  for (const CpuIsa isa : cpu_isas())
    for (const char* text : {"{kind: onebit, bucket: 64}", "{kind: qsgd, bits: 4, bucket: 64}",
                             "{kind: qsgd, bits: 4, levels: interval, bucket: 64}",
                             "{kind: qsgd, bits: 4, levels: optimal, bucket: 64}", "{kind: sign, bucket: 64}",
                             "{kind: dynamic8, bucket: 64}"})
      for (const float special : {std::nanf(""), infinity, -infinity}) {
        const auto codec = make_cpu_codec(spec_of(text), isa);
        std::vector<float> values = inputs(200, 0);
        values[70] = special;
        const Encoded e = encode(*codec, values, inputs(200, 0, 2), 64);
        EXPECT_FALSE(e.finite);
        for (std::size_t i = 0; i < 200; ++i) {
          const bool non_finite = i >= 64 && i < 128;
          ASSERT_EQ(std::isnan(e.decoded[i]), non_finite) << i;
          ASSERT_EQ(std::isnan(e.residual[i]), non_finite) << i;
          if (non_finite) {
            ASSERT_EQ(ScalarLanes::bits(e.decoded[i]), canonical_nan_bits);
          }
        }
        std::vector<float> sum(200, 1.0f);
        EXPECT_FALSE(codec->decode(e.bytes.data(), 200, 64, true, sum.data()));
        EXPECT_TRUE(std::isnan(sum[64]) && std::isnan(sum[127]) && !std::isnan(sum[63]) &&
                    !std::isnan(sum[128]));
      }
}

TEST(Codec, TopkCarriesWhatIsNotFinite) {
  for (const CpuIsa isa : cpu_isas()) {
    const auto codec = make_cpu_codec(spec_of("{kind: topk, density: 0.05, bucket: 64}"), isa);
    std::vector<float> values = inputs(200, 0);
    values[70] = -infinity;
    values[100] = std::nanf("");
    values[150] = std::nanf("");
    const Encoded e = encode(*codec, values, inputs(200, 0, 2), 64);
    EXPECT_FALSE(e.finite);
    EXPECT_EQ(e.decoded[70], -infinity);
    for (const std::size_t i : {100u, 150u}) {
      EXPECT_EQ(ScalarLanes::bits(e.decoded[i]), canonical_nan_bits);
      EXPECT_EQ(ScalarLanes::bits(e.residual[i]), canonical_nan_bits);
    }
    EXPECT_EQ(std::count_if(e.decoded.begin(), e.decoded.end(), [](float x) { return x != 0; }),
              3 + 3 + 3 + 1);  // of 64, 64, 64 and 8 values
    std::vector<float> sum(200, 1.0f);
    EXPECT_FALSE(codec->decode(e.bytes.data(), 200, 64, true, sum.data()));
    EXPECT_TRUE(std::isnan(sum[100]) && sum[101] == 1.0f);
  }
}

// Its bytes cannot carry it; the exchange asks the ranks (Exchange::check_finite).
TEST(Codec, MajorityTellsWhatIsNotFinite) {
  for (const CpuIsa isa : cpu_isas()) {
    const auto codec = make_cpu_codec(spec_of("{kind: sign, bucket: 64, majority: true}"), isa);
    EXPECT_FALSE(codec->carries_non_finite());
    std::vector<float> values = inputs(130, 0);
    EXPECT_TRUE(encode(*codec, values, {}, 64).finite);
    values[70] = std::nanf("");
    const Encoded e = encode(*codec, values, {}, 64);
    EXPECT_FALSE(e.finite);
    for (std::size_t i = 64; i < 128; ++i) EXPECT_EQ(e.decoded[i], -1.0f);
  }
  EXPECT_TRUE(make_codec(spec_of("sign"))->carries_non_finite());
}

TEST(Codec, AnyBytesDecode) {
  for (const CpuIsa isa : cpu_isas())
    for (const std::string& text : all_specs())
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        const auto codec = make_cpu_codec(spec_of(text), isa);
        const std::int64_t n = lengths()[seed % lengths().size()];
        const std::int64_t bucket = bucket_of(*codec, n);
        // Exactly sized heap blocks: the sanitizer build sees any access beside them.
        std::vector<float> out(static_cast<std::size_t>(n));
        Bytes bytes(codec->encoded_bytes(n, bucket));
        PhiloxSequence random(seed, RandomUse::dataset, 1);
        for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
        const bool finite = codec->decode(bytes.data(), n, bucket, false, out.data());
        bool all = true;
        for (const float x : out) {
          all &= std::isfinite(x);
          if (std::isnan(x)) {
            ASSERT_EQ(ScalarLanes::bits(x), canonical_nan_bits);
          }
        }
        EXPECT_EQ(finite, all) << text << " n " << n;
        codec->decode(bytes.data(), n, bucket, true, out.data());
      }
}

// Every code of every scaled codec, against the arithmetic of docs/numerics.md in plain floats.
TEST(Codec, EveryCodeDecodes) {
  for (const CpuIsa isa : cpu_isas())
    for (const int bits : {2, 4, 8, 16})
      for (const bool interval : {false, true}) {
        const auto codec =
            make_cpu_codec(spec_of("{kind: qsgd, bucket: tensor, bits: " + std::to_string(bits) +
                                   ", levels: " + (interval ? "interval}" : "sign_magnitude}")),
                           isa);
        const std::int64_t n = std::max(32, 1 << bits);
        for (const float norm : {1.0f, 0.3f, 3e-39f, 3e38f, -7.7f}) {
          Bytes bytes(codec->encoded_bytes(n, n));
          std::memcpy(bytes.data(), &norm, 4);
          for (std::int64_t i = 0; i < n; ++i)
            for (int b = 0; b < bits; ++b)
              if (i >> b & 1) {
                const std::int64_t at = i * bits + b;
                bytes[static_cast<std::size_t>(4 + at / 8)] |= static_cast<std::byte>(1 << at % 8);
              }
          std::vector<float> out(static_cast<std::size_t>(n));
          codec->decode(bytes.data(), n, n, false, out.data());
          const float s = static_cast<float>((1 << (bits - 1)) - 1),
                      top = static_cast<float>((1 << bits) - 1);
          for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t code = i % (std::int64_t{1} << bits);
            const auto level = static_cast<float>(code & ((1 << (bits - 1)) - 1));
            float expected = norm * (level / s);
            if (code >> (bits - 1)) expected = -expected;
            if (interval) expected = norm * ((2 * static_cast<float>(code) - top) / top);
            ASSERT_EQ(ScalarLanes::bits(out[static_cast<std::size_t>(i)]), ScalarLanes::bits(expected))
                << to_text(isa) << bits << " code " << code << " norm " << norm << interval;
          }
        }
      }
}

TEST(Codec, ReduceIsItsPartsInTurn) {
  for (const CpuIsa isa : cpu_isas())
    for (const std::string& text : all_specs())
      for (const std::size_t ranks : {1u, 2u, 3u, 8u, 17u})
        for (const auto& [n, special] : {std::pair{std::int64_t{1}, 0.0f},
                                         {65, 0.0f},
                                         {9001, 0.0f},
                                         {9001, infinity},
                                         {513, std::nanf("")}}) {
          const auto codec = make_cpu_codec(spec_of(text), isa);
          const std::int64_t bucket = bucket_of(*codec, n);
          std::vector<Bytes> sent;
          std::vector<const std::byte*> contributions;
          std::vector<float> sum(static_cast<std::size_t>(n));
          for (std::size_t r = 0; r < ranks; ++r) {
            CodingContext c = context;
            c.rank = static_cast<std::uint32_t>(r);
            std::vector<float> values = inputs(n, 0, 10 + c.rank);
            if (special != 0 && r + 1 == ranks) values[70] = special;
            sent.push_back(encode(*codec, values, {}, bucket, c).bytes);
            codec->decode(sent.back().data(), n, bucket, r > 0, sum.data());
          }
          for (const Bytes& b : sent) contributions.push_back(b.data());
          for (float& x : sum) x *= 1.0f / static_cast<float>(ranks);
          CodingContext round2 = context;
          round2.round = 2;
          for (const bool feedback : {false, true}) {
            const std::vector<float> before = feedback ? inputs(n, 0, 99) : std::vector<float>();
            const Encoded expected = encode(*codec, sum, before, bucket, round2);
            Bytes out(expected.bytes.size());
            std::vector<float> residual = before;
            EXPECT_EQ(codec->reduce(contributions, feedback ? residual.data() : nullptr, n, 0, bucket, round2,
                                    out.data()),
                      expected.finite);
            EXPECT_TRUE(same_bytes(out, expected.bytes)) << text;
            EXPECT_TRUE(same_bytes(residual, expected.residual)) << text;
          }
        }
}

/// The levels that a value may be rounded to in a bucket of norm 1, ascending, from -1 to 1.
std::vector<double> levels_of(const CodecSpec& spec, const std::vector<float>& values) {
  const auto o = spec.options.get<QsgdOptions>();
  const int s = (1 << (o.bits - 1)) - 1;
  std::vector<double> out;
  if (o.levels == QsgdOptions::Levels::interval) {
    for (int c = 0; c < 1 << o.bits; ++c) out.push_back(2.0 * c / ((1 << o.bits) - 1) - 1);
    return out;
  }
  std::vector<int> table;
  if (o.levels == QsgdOptions::Levels::optimal)
    table = slow::optimal_levels(spec, values, static_cast<std::int64_t>(values.size()));
  for (int j = -s; j <= s; ++j) {
    const int k = std::abs(j);
    const double level = o.levels == QsgdOptions::Levels::sign_magnitude ? static_cast<double>(k) / s
                         : o.levels == QsgdOptions::Levels::optimal
                             ? table[static_cast<std::size_t>(k)] / 256.0
                         : k == 0 ? 0.0
                                  : std::ldexp(1.0, k - s);
    out.push_back(j < 0 ? -level : level);
  }
  return out;
}

// Rounding at random to the neighbours lo <= v <= hi without bias has mean v and variance (v-lo)(hi-v). Over
// N draws the mean of each value stays within 5 of its standard errors (6e-7 a value; 1e-3 for all the
// 1,500 values of this test together, whose seeds are fixed), and the dither's 2^-17 steps shift it by
// at most 2^-17 of the gap. The bucket's error stays within the bound of QSGD (Alistarh et al. 2017,
// lemma 3.1), min(n/s^2, sqrt(n)/s) |v|^2, which holds for the 2-norm and uniform levels.
TEST(Codec, QsgdIsUnbiasedAndItsVarianceIsThatOfItsLevels) {
  const std::int64_t n = 128;
  for (const char* text :
       {"{kind: qsgd, bits: 2, norm: l2}", "{kind: qsgd, bits: 4, norm: l2}",
        "{kind: qsgd, bits: 8, norm: l2}", "{kind: qsgd, bits: 16, norm: l2}", "{kind: qsgd, bits: 2}",
        "{kind: qsgd, bits: 4}", "{kind: qsgd, bits: 2, levels: interval}",
        "{kind: qsgd, bits: 4, levels: interval}", "{kind: qsgd, bits: 4, levels: exponential}",
        "{kind: qsgd, bits: 4, levels: optimal}", "{kind: qsgd, bits: 8, levels: optimal}"}) {
    const CodecSpec spec = spec_of(text);
    const auto o = spec.options.get<QsgdOptions>();
    const auto codec = make_codec(spec);
    const std::vector<float> values = inputs(n, 0);
    double largest = 0, squares = 0;
    for (const float v : values) {
      largest = std::max(largest, std::fabs(static_cast<double>(v)));
      squares += static_cast<double>(v) * v;
    }
    const double norm = o.norm == QsgdOptions::Norm::l2 ? std::sqrt(squares) : largest;
    const std::vector<double> levels = levels_of(spec, values);
    const int draws = 4000;
    std::vector<double> sum(values.size());
    double error_squares = 0, expected_squares = 0;
    for (int d = 0; d < draws; ++d) {
      CodingContext c = context;
      c.step = static_cast<std::uint32_t>(d);
      c.seed = static_cast<std::uint32_t>(d % 7);
      const Encoded e = encode(*codec, values, {}, n, c);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double error = static_cast<double>(e.decoded[i]) - static_cast<double>(values[i]);
        sum[i] += error;
        error_squares += error * error;
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double y = static_cast<double>(values[i]) / norm;
      const auto hi = std::lower_bound(levels.begin() + 1, levels.end() - 1, y);
      const double gap = (*hi - *(hi - 1)) * norm;
      const double variance = std::max(0.0, (y - *(hi - 1)) * (*hi - y)) * norm * norm;
      expected_squares += variance;
      EXPECT_LT(std::fabs(sum[i] / draws), 5 * std::sqrt(variance / draws) + gap * 0x1p-17 + norm * 1e-6)
          << text << ", value " << i;
    }
    // The sum over 128 values and 4000 draws varies by less than 1/100 of itself, five times over.
    const double measured = error_squares / draws;
    EXPECT_NEAR(measured / expected_squares, 1, 0.02) << text;
    if (o.norm == QsgdOptions::Norm::l2) {
      const double s = (1 << (o.bits - 1)) - 1, dimension = static_cast<double>(n);
      EXPECT_LE(measured, std::min(dimension / (s * s), std::sqrt(dimension) / s) * squares * 1.02) << text;
    }
  }
}

TEST(Codec, Sizes) {
  const auto bytes = [](const char* text, std::int64_t n) {
    const auto codec = make_codec(spec_of(text));
    return codec->encoded_bytes(n, bucket_of(*codec, n));
  };
  EXPECT_EQ(bytes("{kind: qsgd, bits: 4}", 512 * 100), 512 * 100 * 4.0625 / 8);
  EXPECT_EQ(bytes("onebit", 6400), 6400 * 2 / 8);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 2}", 129), 4u + 32 + 4 + 4);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 16, bucket: tensor}", 33), 4u + 68);
  EXPECT_EQ(bytes("{kind: onebit, bucket: tensor}", 33), 8u + 8);
  EXPECT_EQ(bytes("none", 33), 132u);
  EXPECT_EQ(bytes("fp16", 33), 66u);
  EXPECT_EQ(bytes("onebit", 0), 0u);
  EXPECT_EQ(bytes("sign", 65), 4u + 12);
  EXPECT_EQ(bytes("{kind: sign, majority: true}", 65), 12u);
  EXPECT_EQ(bytes("dynamic8", 4097), 4u + 4096 + 4 + 4);
  EXPECT_EQ(bytes("{kind: topk, density: 0.01}", 4096 + 50), 8u * 41 + 8 * 1);
  EXPECT_EQ(bytes("{kind: topk, density: 0.01}", 4096 + 49), 8u * 41 + 8 * 1);  // at least one
  EXPECT_EQ(bytes("{kind: topk, density: 1, bucket: 32}", 33), 8u * 33);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 4, levels: interval}", 512), 260u);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 4, levels: optimal}", 1024), 8u + 2 * 260);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 8, levels: optimal}", 512), 128u + 516);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 2, levels: optimal}", 0), 0u);
  const auto column = make_codec(spec_of("{kind: onebit, bucket: column}"));
  const TensorInfo conv{.name = "c", .kind = TensorKind::conv, .shape = {4, 5, 3, 3}, .elements = 180};
  EXPECT_EQ(column->bucket(conv), 3);
  EXPECT_EQ(column->encoded_bytes(180, 3), 60u * 12);
  EXPECT_EQ(bucket_of(*make_codec(spec_of("{kind: qsgd, bucket: tensor}")), 0), 1);
}

TEST(Codec, StripesCoverEveryBucketOnce) {
  for (const int ranks : {1, 2, 3, 5, 7})
    for (const std::int64_t n : lengths())
      for (const std::size_t tensor : {0u, 1u, 9u}) {
        const std::vector<Stripe> out = stripes(n, 64, ranks, tensor);
        ASSERT_EQ(out.size(), static_cast<std::size_t>(ranks));
        std::int64_t at = 0;
        std::vector<int> owners(out.size());
        for (std::size_t r = 0; r < out.size(); ++r) {
          EXPECT_EQ(out[r].first, at);
          EXPECT_TRUE(out[r].last == n || out[r].last % 64 == 0);
          at = out[r].last;
          EXPECT_EQ(out[r].owner, static_cast<int>((r + tensor) % out.size()));
        }
        EXPECT_EQ(at, n);
      }
  const std::vector<Stripe> three = stripes(64 * 4 + 1, 64, 3, 1);  // buckets 0, 1-2, 3-4
  EXPECT_EQ(three[0].last, 64);
  EXPECT_EQ(three[1].last, 3 * 64);
  EXPECT_EQ(three[2].last, 257);
}

TEST(Codec, ColumnOrder) {
  // conv in memory (O, H, W, I) to (O, H, I, W).
  const TensorInfo conv{.name = "c", .kind = TensorKind::conv, .shape = {2, 37, 3, 5}, .elements = 1110};
  const std::vector<float> memory = inputs(1110, 0);
  std::vector<float> encoded(1110), back(1110);
  to_column_order(conv.columns(), memory.data(), encoded.data());
  for (std::size_t o = 0; o < 2; ++o)
    for (std::size_t h = 0; h < 3; ++h)
      for (std::size_t w = 0; w < 5; ++w)
        for (std::size_t i = 0; i < 37; ++i)
          ASSERT_EQ(encoded[((o * 3 + h) * 37 + i) * 5 + w], memory[((o * 3 + h) * 5 + w) * 37 + i]);
  from_column_order(conv.columns(), encoded.data(), back.data());
  EXPECT_EQ(back, memory);
  // dense in memory (out, in) to (in, out).
  const TensorInfo dense{.name = "d", .kind = TensorKind::dense, .shape = {10, 111}, .elements = 1110};
  to_column_order(dense.columns(), memory.data(), encoded.data());
  EXPECT_EQ(encoded[3 * 10 + 7], memory[7 * 111 + 3]);
}

}  // namespace
}  // namespace lpsgd
