// Every instruction set against the golden vectors, which tests/golden/reference.py computed in Python.
#include <gtest/gtest.h>

#include <cstring>

#include "core/config.h"
#include "tests/quant/codec_cases.h"

namespace lpsgd {
namespace {

using namespace codec_cases;
using Case = codec_cases::Golden;

void check_encode(const Case& c, const Codec& codec) {
  const std::vector<float> values = floats(c.blobs[0]);
  std::vector<float> residual = floats(c.blobs[1]);
  CodingJob job = c.job(codec);
  ASSERT_EQ(static_cast<std::int64_t>(values.size()), job.n);
  ASSERT_EQ(codec.encoded_bytes(job.n), c.blobs[2].size());
  Bytes out(c.blobs[2].size() + 4, std::byte{0xab});
  job.values = values.data();
  job.residual = residual.empty() ? nullptr : residual.data();
  job.bytes = out.data();
  EXPECT_EQ(codec.encode(job, c.context()), c.truth("finite"));
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(out[c.blobs[2].size() + static_cast<std::size_t>(i)], std::byte{0xab});
  out.resize(c.blobs[2].size());
  EXPECT_TRUE(out == c.blobs[2]) << "bytes";
  EXPECT_TRUE(bytes_of(residual) == c.blobs[3]) << "new residual";

  std::vector<float> decoded(values.size(), 123.0f);
  EXPECT_EQ(codec.decode(decoding(codec, out, decoded)), c.truth("decoded_finite"));
  EXPECT_TRUE(bytes_of(decoded) == c.blobs[4]) << "decoded";

  std::vector<float> added(values.size(), 0.5f);
  std::vector<float> expected = floats(c.blobs[4]);
  for (float& x : expected) x = 0.5f + x;
  codec.decode(decoding(codec, out, added), true);
  EXPECT_TRUE(bytes_of(added) == bytes_of(expected)) << "added";
}

void check_reduce(const Case& c, const Codec& codec) {
  std::vector<float> residual = floats(c.blobs[0]);
  std::vector<const std::byte*> contributions;
  for (std::size_t i = 3; i < c.blobs.size(); ++i) contributions.push_back(c.blobs[i].data());
  Bytes out(c.blobs[1].size());
  CodingJob job = c.job(codec);
  job.contributions = contributions.data();
  job.ranks = static_cast<std::int32_t>(contributions.size());
  job.residual = residual.empty() ? nullptr : residual.data();
  job.bytes = out.data();
  codec.reduce(job, c.context());
  EXPECT_TRUE(out == c.blobs[1]) << "bytes";
  EXPECT_TRUE(bytes_of(residual) == c.blobs[2]) << "new residual";
}

class GoldenVectors : public testing::TestWithParam<CpuIsa> {};

TEST_P(GoldenVectors, Hold) {
  const std::vector<Case> cases = golden_cases(LPSGD_GOLDEN);
  ASSERT_GT(cases.size(), 250u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i) + "\n" + config::emit(cases[i].meta));
    const Codec codec(parse_codec(*cases[i].meta.find("codec"), "codec"), cases[i].integer("bucket"),
                      GetParam());
    if (cases[i].meta.find("op")->scalar == "encode")
      check_encode(cases[i], codec);
    else
      check_reduce(cases[i], codec);
    if (HasFailure()) return;  // the first is enough
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenVectors, testing::ValuesIn(cpu_isas()),
                         [](const auto& p) { return std::string(to_text(p.param)); });

}  // namespace
}  // namespace lpsgd
