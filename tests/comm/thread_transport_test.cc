#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "tests/comm/transport_cases.h"

namespace lpsgd {
namespace {

class ThreadRanks : public testing::TestWithParam<int> {
 protected:
  void run(void (*body)(Transport&)) { run_thread_ranks(GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadRanks, testing::Values(1, 2, 3, 4, 5, 7));

TEST_P(ThreadRanks, MessagesMatchByTagInOrder) {
  run(transport_cases::messages_match_by_tag_in_order);
}
TEST_P(ThreadRanks, MessagesOfManySizes) {
  run(transport_cases::messages_of_many_sizes);
}
TEST_P(ThreadRanks, ManyMessagesReuseRequests) {
  run(transport_cases::many_messages_reuse_requests);
}
TEST_P(ThreadRanks, AllreduceSums) {
  run(transport_cases::allreduce_sums);
}
TEST_P(ThreadRanks, Collectives) {
  run(transport_cases::collectives);
}
TEST_P(ThreadRanks, BytesAreCounted) {
  run(transport_cases::bytes_are_counted);
}

TEST(ThreadTransport, EveryRankRunsOnceOnItsOwnThread) {
  std::atomic<int> ran{0};
  run_thread_ranks(5, [&](Transport& t) {
    EXPECT_EQ(t.size(), 5);
    ran += 1 << (4 * t.rank());
  });
  EXPECT_EQ(ran, 0x11111);
}

TEST(ThreadTransport, AFailureEndsWaitingRanksAndIsRethrown) {
  std::atomic<int> woken{0};
  try {
    run_thread_ranks(4, [&](Transport& t) {
      std::vector<std::byte> bytes(100);
      if (t.rank() == 2) throw FileError("rank 2's own");
      try {
        if (t.rank() == 0) {
          const Transport::Request request = t.irecv(bytes, 2, 0);
          t.wait({&request, 1});
        } else if (t.rank() == 1) {
          t.barrier();
        } else {
          std::vector<float> values(10);
          const Transport::Request request = t.iallreduce(values);
          t.wait({&request, 1});
        }
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("rank 2 ended the job"));
        ++woken;
        throw;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const FileError& error) {
    EXPECT_STREQ(error.what(), "rank 2's own");
  }
  EXPECT_EQ(woken, 3);
}

TEST(ThreadTransport, AbortWakesTheOthers) {
  EXPECT_THROW(run_thread_ranks(3,
                                [](Transport& t) {
                                  if (t.rank() == 1) return t.abort(1);
                                  t.barrier();
                                  ADD_FAILURE() << "the barrier was passed";
                                }),
               CommError);
}

TEST(ThreadTransport, SizesThatDifferAreAnError) {
  EXPECT_THROW(run_thread_ranks(2,
                                [](Transport& t) {
                                  std::vector<std::byte> bytes(t.rank() == 0 ? 10 : 11);
                                  const Transport::Request request =
                                      t.rank() == 0 ? t.isend(bytes, 1, 0) : t.irecv(bytes, 0, 0);
                                  t.wait({&request, 1});
                                }),
               CommError);
  EXPECT_THROW(run_thread_ranks(2,
                                [](Transport& t) {
                                  std::vector<float> values(t.rank() == 0 ? 10 : 11);
                                  const Transport::Request request = t.iallreduce(values);
                                  t.wait({&request, 1});
                                }),
               CommError);
}

}  // namespace
}  // namespace lpsgd
