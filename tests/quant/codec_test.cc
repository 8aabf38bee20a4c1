// Properties that hold for every codec and instruction set.
#include "quant/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/philox.h"
#include "quant/codec_math_device.h"
#include "tests/quant/codec_cases.h"
#include "tests/quant/slow_codec.h"

namespace lpsgd {
namespace {

using namespace codec_cases;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr CodingContext context{.seed = 9, .step = 7, .rank = 1, .round = 1};
constexpr std::uint32_t tensor = 3;

void expect_slow(const std::string& text, const Codec& codec, const std::vector<float>& values,
                 const std::vector<float>& residual, const slow::Coded& expected) {
  const Encoded got = encode(codec, values, residual, context, tensor);
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
          const slow::Coded expected =
              slow::encode(spec, values, residual, codec_of(spec, n).bucket(), context, tensor);
          for (const CpuIsa isa : cpu_isas()) {
            SCOPED_TRACE(std::string(to_text(isa)) + " kind " + std::to_string(kind));
            expect_slow(text, codec_of(spec, n, isa), values, residual, expected);
            if (HasFatalFailure()) return;
          }
        }
}

TEST(Codec, MillionsOfValues) {
#ifdef __SANITIZE_ADDRESS__
  const std::int64_t n = 1'000'003;  // the slow reference takes minutes for more
#else
  const std::int64_t n = 3'000'017;  // a prime
#endif
  std::vector<float> values = inputs(n, 0), residual = inputs(n, 0, 2);
  for (std::size_t i = 0; i < values.size(); i += 100'003) values[i] = std::ldexp(values[i], 12);
  std::vector<std::string> texts = all_specs();
  texts.insert(texts.end(),
               {"{kind: qsgd, bits: 8, norm: l2, bucket: tensor}", "{kind: topk, bucket: tensor}"});
  for (const std::string& text : texts) {
    const CodecSpec spec = spec_of(text);
    const slow::Coded expected =
        slow::encode(spec, values, residual, codec_of(spec, n).bucket(), context, tensor);
    for (const CpuIsa isa : cpu_isas()) {
      expect_slow(text, codec_of(spec, n, isa), values, residual, expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Codec, PiecesEncodeAsTheWhole) {
  for (const std::string& text : all_specs()) {
    const std::int64_t n = 40000;
    const Codec codec = codec_of(spec_of(text), n);
    const std::vector<float> values = inputs(n, 0);
    const Encoded whole = encode(codec, values, inputs(n, 0, 2), context, tensor);
    for (const std::int64_t buckets : {1, 3}) {
      const std::int64_t piece = buckets * codec.bucket();
      Bytes bytes, part;
      std::vector<float> residual = inputs(n, 0, 2);
      Bytes table(codec.table_bytes() + 1);
      codec.make_table(encoding(codec, values, residual, part, tensor), table.data());
      for (std::int64_t at = 0; at < n; at += piece) {
        CodingJob job = codec.job(at, std::min(piece, n - at), tensor);
        part.resize(codec.encoded_bytes(job.n));
        job.values = values.data() + at;
        job.residual = residual.data() + at;
        job.table = table.data();
        job.bytes = part.data();
        codec.encode(job, context);
        const auto records = part.begin() + static_cast<std::ptrdiff_t>(at == 0 ? 0 : codec.table_bytes());
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
      const std::int64_t n = 3001;
      const std::vector<float> values = inputs(n, kind), residual = inputs(n, kind, 2);
      const Encoded e = encode(codec_of(spec_of(text), n), values, residual, context, tensor);
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

TEST(Codec, NonFiniteBucketsTravelAsNan) {
  for (const CpuIsa isa : cpu_isas())
    for (const char* text : {"{kind: onebit, bucket: 64}", "{kind: qsgd, bits: 4, bucket: 64}",
                             "{kind: qsgd, bits: 4, levels: interval, bucket: 64}",
                             "{kind: qsgd, bits: 4, levels: optimal, bucket: 64}", "{kind: sign, bucket: 64}",
                             "{kind: dynamic8, bucket: 64}"})
      for (const float special : {std::nanf(""), infinity, -infinity}) {
        const Codec codec(spec_of(text), 64, isa);
        std::vector<float> values = inputs(200, 0);
        values[70] = special;
        Encoded e = encode(codec, values, inputs(200, 0, 2), context, tensor);
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
        EXPECT_FALSE(codec.decode(decoding(codec, e.bytes, sum), true));
        EXPECT_TRUE(std::isnan(sum[64]) && std::isnan(sum[127]) && !std::isnan(sum[63]) &&
                    !std::isnan(sum[128]));
      }
}

TEST(Codec, TopkCarriesWhatIsNotFinite) {
  for (const CpuIsa isa : cpu_isas()) {
    const Codec codec(spec_of("{kind: topk, density: 0.05, bucket: 64}"), 64, isa);
    std::vector<float> values = inputs(200, 0);
    values[70] = -infinity;
    values[100] = std::nanf("");
    values[150] = std::nanf("");
    Encoded e = encode(codec, values, inputs(200, 0, 2), context, tensor);
    EXPECT_FALSE(e.finite);
    EXPECT_EQ(e.decoded[70], -infinity);
    for (const std::size_t i : {100u, 150u}) {
      EXPECT_EQ(ScalarLanes::bits(e.decoded[i]), canonical_nan_bits);
      EXPECT_EQ(ScalarLanes::bits(e.residual[i]), canonical_nan_bits);
    }
    EXPECT_EQ(std::count_if(e.decoded.begin(), e.decoded.end(), [](float x) { return x != 0; }),
              3 + 3 + 3 + 1);  // of 64, 64, 64 and 8 values
    std::vector<float> sum(200, 1.0f);
    EXPECT_FALSE(codec.decode(decoding(codec, e.bytes, sum), true));
    EXPECT_TRUE(std::isnan(sum[100]) && sum[101] == 1.0f);
  }
}

// Its bytes cannot carry it; the exchange asks the ranks (Exchange::check_finite).
TEST(Codec, MajorityTellsWhatIsNotFinite) {
  for (const CpuIsa isa : cpu_isas()) {
    const Codec codec(spec_of("{kind: sign, bucket: 64, majority: true}"), 64, isa);
    EXPECT_FALSE(codec.carries_non_finite());
    std::vector<float> values = inputs(130, 0);
    EXPECT_TRUE(encode(codec, values, {}, context, tensor).finite);
    values[70] = std::nanf("");
    const Encoded e = encode(codec, values, {}, context, tensor);
    EXPECT_FALSE(e.finite);
    for (std::size_t i = 64; i < 128; ++i) EXPECT_EQ(e.decoded[i], -1.0f);
  }
  EXPECT_TRUE(codec_of(spec_of("sign"), 64).carries_non_finite());
}

TEST(Codec, AnyBytesDecode) {
  for (const CpuIsa isa : cpu_isas())
    for (const std::string& text : all_specs())
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        const std::int64_t n = lengths()[seed % lengths().size()];
        const Codec codec = codec_of(spec_of(text), n, isa);
        // Exactly sized heap blocks: the sanitizer build sees any access beside them.
        std::vector<float> out(static_cast<std::size_t>(n));
        Bytes bytes(codec.encoded_bytes(n));
        PhiloxSequence random(seed, RandomUse::dataset, 1);
        for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
        const bool finite = codec.decode(decoding(codec, bytes, out));
        bool all = true;
        for (const float x : out) {
          all &= std::isfinite(x);
          if (std::isnan(x)) {
            ASSERT_EQ(ScalarLanes::bits(x), canonical_nan_bits);
          }
        }
        EXPECT_EQ(finite, all) << text << " n " << n;
        codec.decode(decoding(codec, bytes, out), true);
      }
}

// Every code of every scaled codec, against the arithmetic of docs/numerics.md in plain floats.
TEST(Codec, EveryCodeDecodes) {
  for (const CpuIsa isa : cpu_isas())
    for (const int bits : {2, 4, 8, 16})
      for (const bool interval : {false, true}) {
        const std::int64_t n = std::max(32, 1 << bits);
        const Codec codec(spec_of("{kind: qsgd, bucket: tensor, bits: " + std::to_string(bits) +
                                  ", levels: " + (interval ? "interval}" : "sign_magnitude}")),
                          n, isa);
        for (const float norm : {1.0f, 0.3f, 3e-39f, 3e38f, -7.7f}) {
          Bytes bytes(codec.encoded_bytes(n));
          std::memcpy(bytes.data(), &norm, 4);
          for (std::int64_t i = 0; i < n; ++i)
            for (int b = 0; b < bits; ++b)
              if (i >> b & 1) {
                const std::int64_t at = i * bits + b;
                bytes[static_cast<std::size_t>(4 + at / 8)] |= static_cast<std::byte>(1 << at % 8);
              }
          std::vector<float> out(static_cast<std::size_t>(n));
          codec.decode(decoding(codec, bytes, out));
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
          const Codec codec = codec_of(spec_of(text), n, isa);
          std::vector<Bytes> sent;
          std::vector<const std::byte*> contributions;
          std::vector<float> sum(static_cast<std::size_t>(n));
          for (std::size_t r = 0; r < ranks; ++r) {
            CodingContext c = context;
            c.rank = static_cast<std::uint32_t>(r);
            std::vector<float> values = inputs(n, 0, 10 + c.rank);
            if (special != 0 && r + 1 == ranks) values[70] = special;
            sent.push_back(encode(codec, values, {}, c, tensor).bytes);
            codec.decode(decoding(codec, sent.back(), sum), r > 0);
          }
          for (const Bytes& b : sent) contributions.push_back(b.data());
          for (float& x : sum) x *= 1.0f / static_cast<float>(ranks);
          CodingContext round2 = context;
          round2.round = 2;
          for (const bool feedback : {false, true}) {
            const std::vector<float> before = feedback ? inputs(n, 0, 99) : std::vector<float>();
            const Encoded expected = encode(codec, sum, before, round2, tensor);
            Bytes out;
            std::vector<float> residual = before;
            EXPECT_EQ(codec.reduce(reduction(codec, contributions, n, residual, out, tensor), round2),
                      expected.finite);
            EXPECT_TRUE(same_bytes(out, expected.bytes)) << text;
            EXPECT_TRUE(same_bytes(residual, expected.residual)) << text;
          }
        }
}

}  // namespace
}  // namespace lpsgd
