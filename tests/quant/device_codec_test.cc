// The device gives the CPU's bytes: every codec, length and kind of values.
#include "tests/quant/device_codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <variant>

#include "core/philox.h"

namespace lpsgd {
namespace {

using namespace codec_cases;

std::vector<std::int64_t> tested_lengths() {
  std::vector<std::int64_t> all = lengths();
  all.push_back(12'289);  // three blocks of the sum, and one
  return all;
}

/// "qsgd_optimal", "onebit": tests of their own, because sanitizers need minutes for all of them.
std::string family(const std::string& text) {
  const CodecSpec spec = spec_of(text);
  std::string out(spec.kind);
  if (const auto* const qsgd = std::get_if<QsgdOptions>(&spec.options)) {
    constexpr const char* levels[] = {"sign_magnitude", "interval", "exponential", "optimal"};
    out += std::string("_") + levels[static_cast<std::size_t>(qsgd->levels)];
  }
  return out;
}

std::set<std::string> families() {
  std::set<std::string> out;
  for (const std::string& text : all_specs()) out.insert(family(text));
  return out;
}

class DeviceCodecs : public DeviceCodec, public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(, DeviceCodecs, testing::ValuesIn(families()),
                         [](const auto& p) { return p.param; });

TEST_P(DeviceCodecs, GivesTheHostsBytes) {
  for (const std::string& text : all_specs()) {
    if (family(text) != GetParam()) continue;
    for (int kind = 0; kind <= kinds && !HasFailure(); ++kind) compare(text, kind, tested_lengths());
  }
}

constexpr const char* bucketed[] = {"kind: onebit",
                                    "kind: sign",
                                    "kind: qsgd, bits: 4, norm: l2",
                                    "kind: qsgd, bits: 16",
                                    "kind: qsgd, bits: 4, levels: optimal",
                                    "kind: qsgd, bits: 8, levels: optimal, norm: l2",
                                    "kind: dynamic8",
                                    "kind: topk, density: 0.1",
                                    "kind: mx",
                                    "kind: mx, element: e4m3, rounding: nearest"};

class DeviceBuckets : public DeviceCodec, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(, DeviceBuckets, testing::ValuesIn(bucketed), [](const auto& p) {
  std::string name = p.param;
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

// A warp keeps 512 values, teams of 1, 2, 4 and 8 warps 1024 each; larger buckets are in pieces of 4096.
TEST_P(DeviceBuckets, AroundTheKernelsLimits) {
  for (const std::int64_t bucket : {480, 512, 544, 1024, 1056, 2048, 2080, 4096, 4128, 8192, 8224, 12'320})
    for (const int kind : {0, kinds}) {
      std::vector<std::int64_t> all{1, bucket - 1, bucket, bucket + 1, 2 * bucket + 257};
      if (bucket <= 1024) all.push_back(9 * bucket);  // more than the teams of a block
      compare(fmt::format("{{{}, bucket: {}}}", GetParam(), bucket), kind, all);
      if (HasFailure()) return;
    }
}

// More whole buckets than a launch has warps for them, of several jobs: a warp goes on to the next one, and
// to the next job.
TEST_F(DeviceCodec, WarpsCodeManyBuckets) {
  const std::int64_t warps = std::int64_t{64} * cuda_device_info(device.index).multiprocessors;
  for (const char* text : {"{kind: qsgd, bits: 4, bucket: 512}", "{kind: onebit, bucket: 64}",
                           "{kind: sign, bucket: 512}", "{kind: qsgd, bits: 4, levels: optimal, bucket: 512}",
                           "{kind: qsgd, bits: 8, levels: optimal, bucket: 512}",
                           // The table has two bytes, so no record is aligned, and no bucket counts as whole.
                           "{kind: qsgd, bits: 2, levels: optimal, bucket: 512}"}) {
    const std::int64_t piece = spec_of(text).kind == "onebit" ? 256 : 512;
    for (const int kind : {0, 1, kinds}) {
      compare(text, kind, {warps / 2 * piece, 100, (warps + 7) * piece + 33, 3 * piece});
      if (HasFailure()) return;
    }
  }
}

TEST_F(DeviceCodec, GoldenVectors) {
  const auto cases = golden_cases(LPSGD_GOLDEN);
  ASSERT_GT(cases.size(), 250u);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Golden& c = cases[i];
    SCOPED_TRACE("case " + std::to_string(i) + "\n" + config::emit(c.meta));
    const CodecSpec spec = parse_codec(*c.meta.find("codec"), "codec");
    memory_.clear();
    const bool encodes = c.meta.find("op")->scalar == "encode";
    const std::vector<float> residual = floats(c.blobs[encodes ? 1 : 0]);
    const Bytes& expected = c.blobs[encodes ? 2 : 1];
    CodingJob job = c.job(Codec(spec, c.integer("bucket")));
    std::vector<const std::byte*> contributions;
    job.residual = residual.empty() ? nullptr : up(residual);
    job.bytes = room<std::byte>(expected.size());
    job.non_finite = room<std::uint32_t>(1);
    if (encodes) {
      job.values = up(floats(c.blobs[0]));
    } else {
      for (std::size_t k = 3; k < c.blobs.size(); ++k) contributions.push_back(up(c.blobs[k]));
      job.contributions = contributions.data();
      job.ranks = static_cast<std::int32_t>(contributions.size());
    }
    CudaBatch batch(spec, device, {&job, 1});
    if (encodes)
      batch.encode(c.context(), stream());
    else
      batch.reduce(c.context(), stream());
    ASSERT_TRUE(down(job.bytes, expected.size()) == expected) << "bytes";
    if (!residual.empty()) {
      ASSERT_TRUE(bytes_of(down(job.residual, residual.size())) == c.blobs[encodes ? 3 : 2]) << "residual";
    }
    if (!encodes) continue;
    ASSERT_EQ(down(job.non_finite, 1)[0] == 0, c.truth("finite"));
    CodingJob back = job;
    back.values = nullptr;
    back.out = room<float>(static_cast<std::size_t>(job.n));
    back.non_finite = room<std::uint32_t>(1);
    CudaBatch decodes(spec, device, {&back, 1});
    decodes.decode(0, 1, false, stream());
    ASSERT_TRUE(bytes_of(down(back.out, static_cast<std::size_t>(job.n))) == c.blobs[4]) << "decoded";
    ASSERT_EQ(down(back.non_finite, 1)[0] == 0, c.truth("decoded_finite"));
  }
}

// Stripes of one tensor, encoded as separate jobs, are the whole's bytes; the table is the tensor's.
TEST_F(DeviceCodec, StripesOfATensorShareItsTable) {
  for (const char* text :
       {"{kind: qsgd, bits: 4, levels: optimal, bucket: 64}",
        "{kind: qsgd, bits: 8, levels: optimal, norm: l2}", "{kind: qsgd, bits: 4}", "onebit"}) {
    const std::int64_t n = 9'001;
    const Codec host = codec_of(spec_of(text), n);
    const std::vector<float> values = inputs(n, 0);
    std::vector<float> residual = inputs(n, 0, 2);
    const float* there = up(values);
    float* residual_there = up(residual);
    std::vector<CodingJob> jobs;
    std::vector<Stripe> parts = stripes(n, host.bucket(), 3, 1);
    std::swap(parts[0], parts[2]);
    for (const Stripe& part : parts) {
      CodingJob& job = jobs.emplace_back(host.job(part.first, part.last - part.first, 7));
      job.values = there + part.first;
      job.residual = residual_there + part.first;
      job.bytes = room<std::byte>(host.encoded_bytes(job.n));
    }
    CudaBatch batch(host.spec(), device, jobs);
    batch.encode(base, stream());
    Bytes table(host.table_bytes() + 1), bytes;
    host.make_table(encoding(host, values, residual, bytes), table.data());
    for (const CodingJob& job : jobs) {
      Bytes expected(host.encoded_bytes(job.n));
      std::vector<float> r(residual.begin() + job.first, residual.begin() + job.first + job.n);
      CodingJob same = job;
      same.values = values.data() + job.first;
      same.residual = r.data();
      same.table = table.data();
      same.bytes = expected.data();
      host.encode(same, base);
      EXPECT_TRUE(same_bytes(down(job.bytes, expected.size()), expected)) << text << " from " << job.first;
      EXPECT_TRUE(same_bytes(down(job.residual, r.size()), r)) << text << " from " << job.first;
    }
  }
}

TEST_F(DeviceCodec, ErrorsAreSummed) {
  std::vector<std::string> texts = all_specs();
  const std::string in_pieces = texts.emplace_back("{kind: topk, density: 0.01, bucket: tensor}");
  for (const std::string& text : texts)
    for (const bool feedback : {false, true}) {
      const std::int64_t n = text == in_pieces ? 100'003 : 5'003;
      const Codec host = codec_of(spec_of(text), n);
      const std::vector<float> values = text == in_pieces ? crowded(n, 0) : inputs(n, 0);
      const std::vector<float> residual = feedback ? inputs(n, 0, 2) : std::vector<float>();
      CodingJob job = host.job(0, n);
      job.values = up(values);
      job.residual = feedback ? up(residual) : nullptr;
      job.bytes = room<std::byte>(host.encoded_bytes(n));
      job.error = room<double>(2);
      CudaBatch batch(host.spec(), device, {&job, 1});
      batch.encode(base, stream());
      const Encoded expected = codec_cases::encode(host, values, residual, base, 0);
      double own = 0, lost = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double left = feedback ? expected.residual[i] : values[i] - expected.decoded[i];
        own += static_cast<double>(values[i]) * values[i];
        lost += left * left;
      }
      const auto sums = down(job.error, 2);
      EXPECT_NEAR(sums[0], own, 1e-12 * own) << text << feedback;
      EXPECT_NEAR(sums[1], lost, 1e-12 * lost) << text << feedback;
    }
}

TEST_F(DeviceCodec, AnyBytesDecode) {
  for (const std::string& text : all_specs()) {
    const CodecSpec spec = spec_of(text);
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      const std::int64_t n = lengths()[seed + 8];
      const Codec host = codec_of(spec, n);
      Bytes bytes(host.encoded_bytes(n));
      PhiloxSequence random(seed, RandomUse::dataset, 1);
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
      CodingJob job = host.job(0, n);
      job.bytes = up(bytes);
      job.out = room<float>(static_cast<std::size_t>(n));
      job.non_finite = room<std::uint32_t>(1);
      CudaBatch batch(spec, device, {&job, 1});
      batch.decode(0, 1, false, stream());
      std::vector<float> expected(static_cast<std::size_t>(n));
      const bool finite = host.decode(decoding(host, bytes, expected));
      const std::vector<float> decoded = down(job.out, expected.size());
      batch.decode(0, 1, true, stream());
      stream_->synchronize();
      // Positions in any order, some twice: the device may leave out what the host has, or keep the other
      // value.
      if (spec.kind == "topk") continue;
      EXPECT_TRUE(same_bytes(decoded, expected)) << text << " n " << n;
      EXPECT_EQ(down(job.non_finite, 1)[0] == 0, finite) << text;
    }
  }
}

TEST_F(DeviceCodec, NoneIsWeightedAndChecked) {
  const std::vector<float> values = values_of(1'001, kinds, 1);
  CodingJob job;
  job.bytes = reinterpret_cast<std::byte*>(up(values));
  job.out = room<float>(values.size());
  job.non_finite = room<std::uint32_t>(1);
  job.n = 1'001;
  job.bucket = 64;
  CudaBatch batch(CodecSpec{}, device, {&job, 1});
  batch.decode(0, 1, false, stream(), 1.0f / 3);
  std::vector<float> expected = values;
  for (float& x : expected) {
    x *= 1.0f / 3;
    if (x != x) x = std::bit_cast<float>(0x7fc00000u);
  }
  EXPECT_TRUE(same_bytes(down(job.out, values.size()), expected));
  EXPECT_EQ(down(job.non_finite, 1)[0], 1u);

  std::vector<float> odd = values;
  odd[7] = std::bit_cast<float>(0xffc12345u);
  for (const bool finite : {false, true}) {
    const std::vector<float> given = finite ? inputs(1'001, 0) : odd;
    job.out = up(given, 4);
    job.non_finite = room<std::uint32_t>(1);
    CudaBatch checks(CodecSpec{}, device, {&job, 1});
    checks.check(stream());
    std::vector<float> checked = given;
    for (float& x : checked)
      if (x != x) x = std::bit_cast<float>(0x7fc00000u);
    EXPECT_TRUE(same_bytes(down(job.out, given.size()), checked));
    EXPECT_EQ(down(job.non_finite, 1)[0] == 0, finite);
  }
}

TEST_F(DeviceCodec, Transposes) {
  std::vector<TensorInfo::Columns> shapes;
  for (std::int64_t i = 0; i < 37; ++i) shapes.push_back({1 + i % 3, 1 + 13 * i % 71, 1 + 29 * i % 97});
  std::vector<std::vector<float>> values;
  std::vector<Transposition> there, back;
  for (const auto& s : shapes) {
    values.push_back(inputs(s.outer * s.rows * s.columns, 0));
    there.push_back({up(values.back()), room<float>(values.back().size()), s.outer, s.rows, s.columns});
    back.push_back({there.back().to, room<float>(values.back().size()), s.outer, s.columns, s.rows});
  }
  cuda_transpose(there, stream());
  cuda_transpose(back, stream());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    std::vector<float> expected(values[i].size());
    to_column_order(shapes[i], values[i].data(), expected.data());
    EXPECT_TRUE(same_bytes(down(there[i].to, expected.size()), expected)) << i;
    EXPECT_TRUE(same_bytes(down(back[i].to, expected.size()), values[i])) << i;
  }
}

}  // namespace
}  // namespace lpsgd
