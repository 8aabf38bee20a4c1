// topk's large buckets on a device, which are coded in pieces.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/quant/device_codec.h"

namespace lpsgd {
namespace {

using namespace codec_cases;

// Of a bucket's values only those from a bound on are counted. Each of the block's eight warps has one value
// far above all others, so that the last ones that are sent are below what eight lanes have.
TEST_F(DeviceCodec, TopkOfValuesThatWarpsShareEvenly) {
  for (const int kept : {1, 7, 8, 9, 12, 16, 17, 250, 256, 257}) {
    const std::int64_t n = 4096;
    const Codec host = codec_of(
        spec_of("{kind: topk, bucket: 4096, density: " + std::to_string((kept + 0.1) / 4096) + "}"), n);
    std::vector<float> values = inputs(n, 0, 7);
    for (float& x : values) x = 1 / (1 + std::abs(x));
    for (std::size_t warp = 0; warp < 8; ++warp) values[256 * warp + 24] = 100 + static_cast<float>(warp);
    memory_.clear();
    CodingJob job = host.job(0, n, 0);
    job.values = up(values);
    job.bytes = room<std::byte>(host.encoded_bytes(n));
    CudaBatch(host.spec(), device, {&job, 1}).encode(base, stream());
    const Bytes expected = codec_cases::encode(host, values, {}, base, 0).bytes;
    EXPECT_TRUE(same_bytes(down(job.bytes, expected.size()), expected)) << kept;
  }
}

// With few candidates, with more than a slot holds in some pieces,
// and with more values tied than are sent.
TEST_F(DeviceCodec, TopkOfLargeBuckets) {
  for (const char* text :
       {"{kind: topk, density: 0.01, bucket: tensor}", "{kind: topk, density: 0.003, bucket: 40960}",
        "{kind: topk, density: 0.2, bucket: tensor}", "{kind: topk, density: 1, bucket: tensor}"})
    for (int kind = 0; kind <= crowded_kinds && !HasFailure(); ++kind)
      compare(text, kind, {100'003, 40'960, 5'000, 33, 4'096, 4'097, 8'192, 81'921});
}

// The places of more than 1024 pieces are summed in two rounds. With more than 1024 pieces a block has
// several, also of different buckets.
TEST_F(DeviceCodec, TopkOfManyPieces) {
  compare("{kind: topk, density: 0.01, bucket: tensor}", 3, {1'228'000});
  compare("{kind: topk, density: 0.01, bucket: tensor}", 0, {4'300'000, 5'000, 12'000, 5'000});
}

}  // namespace
}  // namespace lpsgd
