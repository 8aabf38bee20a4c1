// topk's large buckets on a device, which are coded in pieces.
#include <gtest/gtest.h>

#include "tests/quant/device_codec.h"

namespace lpsgd {
namespace {

// With few candidates, with more than a slot holds in some pieces,
// and with more values tied than are sent.
TEST_F(DeviceCodec, TopkOfLargeBuckets) {
  for (const char* text :
       {"{kind: topk, density: 0.01, bucket: tensor}", "{kind: topk, density: 0.003, bucket: 40960}",
        "{kind: topk, density: 0.2, bucket: tensor}", "{kind: topk, density: 1, bucket: tensor}"})
    for (int kind = 0; kind <= crowded_kinds && !HasFailure(); ++kind)
      compare(text, kind, {100'003, 40'960, 5'000, 33, 4'096, 4'097, 8'192, 81'921});
}

// The places of 300 pieces are summed in two rounds. With more than 1024 pieces a block has several, also of
// different buckets.
TEST_F(DeviceCodec, TopkOfManyPieces) {
  compare("{kind: topk, density: 0.01, bucket: tensor}", 3, {1'228'000});
  compare("{kind: topk, density: 0.01, bucket: tensor}", 0, {4'300'000, 5'000, 12'000, 5'000});
}

}  // namespace
}  // namespace lpsgd
