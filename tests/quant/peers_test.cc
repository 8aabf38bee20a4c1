// Faults that other systems' codecs have had, each with what would catch it here. Elsewhere are:
//   random numbers seeded by the clock         Golden.Cases; cli.runs: the same seed gives the same bytes
//   the owner keeps its unquantized sum        ExchangeOfRanks.ReplicasStayEqual
//   sums in the order of arrival               ExchangeOfRanks.EqualsTheReferenceHoweverItIsCut
//   error feedback without the bucket's offset Codec.PiecesEncodeAsTheWhole, and the same
//   a tail dropped past 64 MB                  Exchange.NothingIsDroppedPastSixtyFourMegabytes
//   a step counter advanced once a parameter   ExchangeOfRanks.EqualsTheReferenceHoweverItIsCut (three steps)
//   counts of elements passed for bytes        ExchangeOfRanks.BytesAreThoseAnnounced
//   residuals zeroed at checkpoints            ExchangeOfRanks.ResidualsContinue; cli.runs: resuming
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "quant/cpu_codec.h"

namespace lpsgd {
namespace {

std::shared_ptr<const Codec> codec_of(const std::string& text, CpuIsa isa = cpu_isas().back()) {
  return make_cpu_codec(parse_codec(config::parse_text(text, "test"), "codec"), isa);
}

std::vector<float> through(const Codec& codec, const std::vector<float>& values, std::int64_t bucket,
                           std::uint32_t step = 0) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<std::byte> bytes(codec.encoded_bytes(n, bucket));
  std::vector<float> out(values.size());
  codec.encode(values.data(), nullptr, n, 0, bucket, {.seed = 1, .step = step}, bytes.data());
  codec.decode(bytes.data(), n, bucket, false, out.data());
  return out;
}

// The original QSGD: a value at the bucket's maximum may be rounded up past the last level.
TEST(PeersFaults, TheLargestValueStaysTheLargest) {
  for (const CpuIsa isa : cpu_isas())
    for (const char* text :
         {"{kind: qsgd, bits: 2}", "{kind: qsgd, bits: 4}", "{kind: qsgd, bits: 8}", "{kind: qsgd, bits: 16}",
          "{kind: qsgd, bits: 8, levels: interval}", "{kind: qsgd, bits: 8, levels: exponential}",
          "{kind: qsgd, bits: 4, levels: optimal}", "dynamic8"})
      for (const float top : {1.0f, 0.1f, 1e-38f, 3e38f, 0.7f}) {
        std::vector<float> values(512, top);  // many dithers
        values[7] = -top;
        EXPECT_EQ(through(*codec_of(text, isa), values, 512), values) << text << ' ' << top;
      }
}

// The original QSGD: no guard where all values are equal to zero. clusterNet: code 0 decodes to the maximum.
TEST(PeersFaults, ZeroStaysZero) {
  for (const CpuIsa isa : cpu_isas())
    for (const char* text :
         {"onebit", "{kind: qsgd, bits: 2}", "{kind: qsgd, bits: 4, norm: l2}", "{kind: qsgd, bits: 8}",
          "{kind: qsgd, levels: interval}", "{kind: qsgd, levels: exponential}",
          "{kind: qsgd, levels: optimal}", "{kind: sign, bucket: 64}", "{kind: topk, density: 0.5}",
          "dynamic8", "{kind: dynamic8, type: static_tree}", "{kind: dynamic8, type: linear}",
          "{kind: dynamic8, type: mantissa}"}) {
      const auto codec = codec_of(text, isa);
      std::vector<float> values(130, 0.0f);
      EXPECT_EQ(through(*codec, values, 64), values) << text;
      // Zeros beside other values, where the codec has a code for 0.
      const std::string kind(codec->spec().kind);
      if (kind == "onebit" || kind == "sign" || std::string(text).find("interval") != std::string::npos)
        continue;
      values[5] = 1000.0f;
      EXPECT_EQ(through(*codec, values, 64), values) << text;
    }
}

// torch_cgx: stochastic rounding is off unless asked for, and the result is biased.
TEST(PeersFaults, RoundingIsStochasticByDefault) {
  const auto codec = codec_of("{kind: qsgd, bits: 2}");
  std::vector<float> values(128, 0.25f);
  values[0] = 1.0f;
  std::set<float> seen;
  double sum = 0;
  for (std::uint32_t step = 0; step < 200; ++step)
    for (const float x : through(*codec, values, 128, step)) {
      seen.insert(x);
      sum += static_cast<double>(x);
    }
  EXPECT_EQ(seen, (std::set<float>{0.0f, 1.0f}));
  EXPECT_NEAR((sum / 200 - 1) / 127, 0.25, 5 * std::sqrt(0.25 * 0.75 / (200 * 127)));
}

// LocalSGD-Code: scales and signs of the ranks are averaged apart.
TEST(PeersFaults, TheMeanIsOfDecodedValues) {
  const auto codec = codec_of("{kind: sign, bucket: 64, error_feedback: false}");
  // Rank 0 sends +-10, rank 1 the opposite sign and 1: the mean is +-4.5, whereas averaged signs would be 0.
  std::vector<float> big(64), small(64), mean(64);
  for (std::size_t i = 0; i < 64; ++i) {
    big[i] = i % 2 ? 10.0f : -10.0f;
    small[i] = i % 2 ? -1.0f : 1.0f;
  }
  std::vector<std::byte> a(codec->encoded_bytes(64, 64)), b(a), out(a);
  codec->encode(big.data(), nullptr, 64, 0, 64, {}, a.data());
  codec->encode(small.data(), nullptr, 64, 0, 64, {}, b.data());
  const std::byte* both[] = {a.data(), b.data()};
  codec->reduce(both, nullptr, 64, 0, 64, {.round = 2}, out.data());
  codec->decode(out.data(), 64, 64, false, mean.data());
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(mean[i], i % 2 ? 4.5f : -4.5f);
}

}  // namespace
}  // namespace lpsgd
