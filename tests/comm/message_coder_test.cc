#include "comm/message_coder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "tests/comm/message_coder_cases.h"

namespace lpsgd {
namespace {

class MessageCoderOfRanks : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(Transport&)>& body) { run_thread_ranks(GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, MessageCoderOfRanks, testing::Values(1, 2, 3, 5));

TEST_P(MessageCoderOfRanks, EqualsTheReferenceWhateverTheBuckets) {
  std::vector<std::string> codecs{"mixed"};
  for (const NamedCodec& codec : tested_codecs()) codecs.emplace_back(codec.name);
  for (const std::string& codec : codecs) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {GetParam()}, 3);
    run([&](Transport& t) { message_coder_cases::equals_reference(t, setup, expected, Device::cpu()); });
  }
}

TEST_P(MessageCoderOfRanks, ResidualsContinue) {
  for (const char* codec : {"mixed", "onebit64", "onebit_column", "qsgd4_l2_feedback"})
    run([&](Transport& t) { message_coder_cases::residuals_continue(t, codec, Device::cpu()); });
}

TEST_P(MessageCoderOfRanks, GoesOnAfterANan) {
  for (const char* codec : {"none", "onebit64", "onebit_column", "qsgd4", "qsgd4_l2_feedback", "majority"})
    run([&](Transport& t) { message_coder_cases::goes_on_after_a_nan(t, codec, Device::cpu()); });
}

TEST_P(MessageCoderOfRanks, BytesAreThoseAnnounced) {
  for (const char* codec : {"mixed", "none", "qsgd2"})
    run([&](Transport& t) { message_coder_cases::bytes_are_those_announced(t, codec, Device::cpu()); });
}

TEST(MessageCoder, RefusesCallsOutOfOrder) {
  const ExchangeSetup setup = make_setup("qsgd4");
  MessageCoder coder(setup.tensors, setup.codecs, {});
  std::vector<float> values(setup.arena);
  const std::size_t t = setup.order.front();
  float* const gradient = values.data() + setup.tensors[t].offset;
  const std::size_t bucket = coder.add_bucket({t}, {{gradient}});
  EXPECT_THROW(coder.encode(bucket), Error);
  EXPECT_THROW(coder.end(), Error);
  EXPECT_THROW(coder.add_bucket({}, {}), Error);
  EXPECT_THROW(coder.add_bucket({setup.tensors.size()}, {{gradient}}), Error);
  EXPECT_THROW(coder.outgoing(bucket + 1, 0), Error);
  EXPECT_THROW(coder.residual(t, 3), Error);
  EXPECT_THROW(coder.move_bucket(bucket, {}), Error);
  coder.begin(0);
  EXPECT_THROW(coder.begin(1), Error);
  EXPECT_THROW(coder.drop_bucket(bucket), Error);
  EXPECT_THROW(coder.residual(t, 1), Error);
  EXPECT_THROW(coder.reduce(bucket), Error);
  EXPECT_THROW(coder.decode(bucket), Error);
  coder.encode(bucket);
  EXPECT_THROW(coder.encode(bucket), Error);
  EXPECT_THROW(coder.decode(bucket), Error);
  EXPECT_THROW(coder.end(), Error);
  coder.reduce(bucket);
  EXPECT_THROW(coder.reduce(bucket), Error);
  EXPECT_THROW(coder.end(), Error);
  coder.decode(bucket);
  coder.end();
  for (const int rank : {-1, 2, 1000}) {
    EXPECT_THROW(coder.outgoing(bucket, rank), Error);
    EXPECT_THROW(coder.incoming(bucket, rank), Error);
    EXPECT_THROW(coder.mean(bucket, rank), Error);
  }
  coder.drop_bucket(bucket);
  EXPECT_THROW(coder.drop_bucket(bucket), Error);
}

}  // namespace
}  // namespace lpsgd
