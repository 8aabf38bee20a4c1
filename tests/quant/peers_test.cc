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

#include "tests/quant/codec_cases.h"

namespace lpsgd {
namespace {

using namespace codec_cases;

std::vector<float> through(const std::string& text, const std::vector<float>& values, std::int64_t bucket,
                           CpuIsa isa = cpu_isas().back(), std::uint32_t step = 0) {
  return encode(Codec(spec_of(text), bucket, isa), values, {}, {.seed = 1, .step = step}, 0).decoded;
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
        EXPECT_EQ(through(text, values, 512, isa), values) << text << ' ' << top;
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
          "{kind: dynamic8, type: mantissa}", "mx", "{kind: mx, element: e4m3, rounding: nearest}"}) {
      std::vector<float> values(130, 0.0f);
      EXPECT_EQ(through(text, values, 64, isa), values) << text;
      // Zeros beside other values, where the codec has a code for 0.
      const std::string kind(spec_of(text).kind);
      if (kind == "onebit" || kind == "sign" || std::string(text).find("interval") != std::string::npos)
        continue;
      values[5] = 1024.0f;
      EXPECT_EQ(through(text, values, 64, isa), values) << text;
    }
}

// torch_cgx: stochastic rounding is off unless asked for, and the result is biased.
TEST(PeersFaults, RoundingIsStochasticByDefault) {
  std::vector<float> values(128, 0.25f);
  values[0] = 1.0f;
  std::set<float> seen;
  double sum = 0;
  for (std::uint32_t step = 0; step < 200; ++step)
    for (const float x : through("{kind: qsgd, bits: 2}", values, 128, cpu_isas().back(), step)) {
      seen.insert(x);
      sum += static_cast<double>(x);
    }
  EXPECT_EQ(seen, (std::set<float>{0.0f, 1.0f}));
  EXPECT_NEAR((sum / 200 - 1) / 127, 0.25, 5 * std::sqrt(0.25 * 0.75 / (200 * 127)));
}

// LocalSGD-Code: scales and signs of the ranks are averaged apart.
TEST(PeersFaults, TheMeanIsOfDecodedValues) {
  const Codec codec(spec_of("{kind: sign, bucket: 64, error_feedback: false}"), 64);
  // Rank 0 sends +-10, rank 1 the opposite sign and 1: the mean is +-4.5, whereas averaged signs would be 0.
  std::vector<float> big(64), small(64), mean(64);
  for (std::size_t i = 0; i < 64; ++i) {
    big[i] = i % 2 ? 10.0f : -10.0f;
    small[i] = i % 2 ? -1.0f : 1.0f;
  }
  const Bytes a = encode(codec, big, {}, {}, 0).bytes, b = encode(codec, small, {}, {}, 0).bytes;
  Bytes out;
  std::vector<float> none;
  codec.reduce(reduction(codec, {a.data(), b.data()}, 64, none, out), {.round = 2});
  codec.decode(decoding(codec, out, mean));
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(mean[i], i % 2 ? 4.5f : -4.5f);
}

}  // namespace
}  // namespace lpsgd
