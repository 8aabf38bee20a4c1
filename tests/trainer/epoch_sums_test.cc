#include "trainer/epoch_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lpsgd {
namespace {

using testing::ElementsAre;

/// What `rank` measures in two steps.
StepMetrics two_steps(int rank) {
  StepMetrics m;
  m.batches = {.loss = 1.5 * rank, .top1 = rank, .top5 = 2 * rank, .samples = 8};
  m.seconds.forward = 0.25 * rank;
  m.seconds.exposed_comm = 3;
  m.bytes_sent = 100 + static_cast<std::uint64_t>(rank);
  m.bytes_fp32 = 4000;
  m.sequences = {.sequences = 3, .room = 10 * rank};
  m.steps = m.exchanges = 2;
  m.distance = {.deviation = 3.0 * rank, .change = 5};
  m.bad_samples.add(std::vector<std::string>(static_cast<std::size_t>(rank), "a.jpg: truncated"));
  return m;
}

TEST(EpochSums, AddsStepsAndRanks) {
  run_thread_ranks(3, [](Transport& transport) {
    EpochSums sums(0);
    sums.start_clock(10);
    sums.add(two_steps(transport.rank()));
    sums.add(two_steps(transport.rank()));
    sums.add_average(100 + static_cast<std::uint64_t>(transport.rank()));
    sums.add_evaluation(2, {.count = 5, .first = {"b.jpg: empty"}});
    const EpochSoFar all = sums.so_far(transport, 17 + transport.rank());
    ASSERT_EQ(all.train.size(), 3u);
    EXPECT_EQ(all.train[2].loss, 6);
    EXPECT_EQ(all.train[2].top1, 4);
    EXPECT_EQ(all.train[2].top5, 8);
    EXPECT_EQ(all.train[2].samples, 16);
    EXPECT_EQ(sum(all.train).loss, 9);
    EXPECT_EQ(sum(all.train).samples, 48);
    EXPECT_EQ(all.seconds.mean.total, 8);  // 7, 8 and 9
    EXPECT_EQ(all.seconds.min.total, 7);
    EXPECT_EQ(all.seconds.max.total, 9);
    EXPECT_EQ(all.seconds.mean.forward, 0.5);
    EXPECT_EQ(all.seconds.max.forward, 1);
    EXPECT_EQ(all.seconds.mean.exposed_comm, 6);
    EXPECT_EQ(all.seconds.mean.eval, 2);
    EXPECT_EQ(all.bytes_sent, 606u);
    EXPECT_EQ(all.bytes_fp32, 8000u) << "counts all ranks already";
    EXPECT_EQ(all.exchanges, 4) << "each rank's";
    EXPECT_DOUBLE_EQ(all.distance.deviation, 6) << "the mean over ranks";
    EXPECT_DOUBLE_EQ(all.distance.change, 10);
    EXPECT_EQ(all.bytes_average, 303u);
    EXPECT_EQ(all.sequences.sequences, 18);
    EXPECT_EQ(all.sequences.room, 60);
    EXPECT_EQ(all.bad_samples, 2 * (0 + 1 + 2) + 3 * 5);
    EXPECT_EQ(sums.bad_samples().count, 2 * transport.rank() + 5);
    EXPECT_LE(sums.bad_samples().first.size(), 3u);
  });
}

TEST(EpochSums, ClearBeginsTheNextEpoch) {
  run_thread_ranks(2, [](Transport& transport) {
    EpochSums sums(1);
    sums.resume({{{.loss = 1}, {.loss = 2}}, {}, 10, 20}, transport.rank(), false);
    sums.add(two_steps(transport.rank()));
    sums.add_evaluation(1, {.count = 1, .first = {"b.jpg: empty"}});
    sums.coding_errors()[0] = {.gradient = 1, .error = 1, .residual = 1};
    sums.clear();
    sums.start_clock(5);
    const EpochSoFar all = sums.so_far(transport, 5);
    EXPECT_EQ(sum(all.train).loss, 0);
    EXPECT_EQ(sum(all.train).samples, 0);
    for (const SecondsField& f : seconds_fields) EXPECT_EQ(all.seconds.max.*f.value, 0) << f.name;
    EXPECT_EQ(all.bytes_sent, 0u);
    EXPECT_EQ(all.bytes_fp32, 0u);
    EXPECT_EQ(all.bad_samples, 0);
    EXPECT_EQ(sums.coding_errors()[0].error, 0);
  });
}

/// The epoch of an earlier run of two ranks.
EpochSoFar earlier() {
  EpochSoFar e;
  e.train = {{.loss = 10, .top1 = 1, .top5 = 2, .samples = 3},
             {.loss = 20, .top1 = 4, .top5 = 5, .samples = 6}};
  e.seconds.mean.total = 7;
  e.seconds.max.total = 8;
  e.bytes_sent = 1000;
  e.bytes_fp32 = 2000;
  e.bad_samples = 4;
  return e;
}

TEST(EpochSums, ResumesEachRanksSum) {
  run_thread_ranks(2, [](Transport& transport) {
    EpochSums sums(0);
    sums.resume(earlier(), transport.rank(), false);
    sums.start_clock(0);
    sums.add(two_steps(transport.rank()));
    const EpochSoFar all = sums.so_far(transport, 1);
    EXPECT_EQ(all.train[0].loss, 10);
    EXPECT_EQ(all.train[1].loss, 21.5);
    EXPECT_EQ(sum(all.train).samples, 25);
    EXPECT_EQ(all.seconds.mean.total, 8);
    EXPECT_EQ(all.seconds.max.total, 9);
    EXPECT_EQ(all.bytes_sent, 1201u);
    EXPECT_EQ(all.bytes_fp32, 6000u);
    EXPECT_EQ(all.bad_samples, 4 + 1) << "of rank 1";
  });
}

TEST(EpochSums, ResumesWithOtherRanksOnRank0) {
  for (const int ranks : {1, 3})
    run_thread_ranks(ranks, [&](Transport& transport) {
      EpochSums sums(0);
      sums.resume(earlier(), transport.rank(), true);
      const EpochSoFar all = sums.so_far(transport, 0);
      EXPECT_EQ(all.train[0].loss, 30);
      EXPECT_EQ(all.train[0].samples, 9);
      EXPECT_EQ(sum(all.train).loss, 30);
      EXPECT_EQ(sum(all.train).samples, 9);
    });
}

TEST(EpochSums, CodingErrorsAreNorms) {
  const std::vector<TensorInfo> tensors{{"a", TensorKind::bias, {64}, 64, 0},
                                        {"b", TensorKind::bias, {8}, 8, 64},
                                        {"c", TensorKind::bias, {8}, 8, 72}};
  run_thread_ranks(2, [&](Transport& transport) {
    EpochSums sums(3);
    sums.add(two_steps(transport.rank()));
    // Sums of squares: over both ranks 100 of gradients, 25 of errors, 16 of residuals.
    sums.coding_errors()[0] = {.gradient = 50,
                               .error = transport.rank() == 0 ? 5.0 : 20.0,
                               .residual = 8,
                               .exchanges = 5,
                               .float32 = 3,
                               .bytes = transport.rank() == 0 ? 70u : 0u};
    sums.coding_errors()[1] = {.exchanges = 1, .float32 = 1, .bytes = 3};
    const std::vector<TensorCoding> coding = sums.coding(transport, tensors);
    ASSERT_EQ(coding.size(), 3u);
    EXPECT_EQ(coding[0].name, "a");
    EXPECT_EQ(coding[0].error, 0.5);
    EXPECT_EQ(coding[0].residual, 2);  // sqrt(16 / (2 coded exchanges * 2 ranks))
    EXPECT_EQ(coding[0].bytes, 70u);
    EXPECT_EQ(coding[1].error, 0) << "as float32";
    EXPECT_EQ(coding[1].residual, 0);
    EXPECT_EQ(coding[1].bytes, 6u);
    EXPECT_TRUE(std::isnan(coding[2].error)) << "it was not exchanged";
    EXPECT_EQ(coding[2].bytes, 0u);
    sums.clear();
    EXPECT_EQ(sums.coding(transport, tensors)[0].bytes, 0u);
  });
}

TEST(EpochSums, NothingIsMeasuredUnlessAsked) {
  run_thread_ranks(1, [](Transport& transport) {
    EpochSums sums(0);
    EXPECT_TRUE(sums.coding_errors().empty());
    EXPECT_TRUE(sums.coding(transport, {}).empty());
  });
}

}  // namespace
}  // namespace lpsgd
