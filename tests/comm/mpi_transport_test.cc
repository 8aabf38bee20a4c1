#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/transport_cases.h"
#include "tests/mpi_main.h"

namespace lpsgd {
namespace {

TEST(MpiTransport, MessagesMatchByTagInOrder) {
  transport_cases::messages_match_by_tag_in_order(world());
}
TEST(MpiTransport, MessagesOfManySizes) {
  transport_cases::messages_of_many_sizes(world());
}
TEST(MpiTransport, ManyMessagesReuseRequests) {
  transport_cases::many_messages_reuse_requests(world());
}
TEST(MpiTransport, AllreduceSums) {
  transport_cases::allreduce_sums(world());
}
TEST(MpiTransport, Collectives) {
  transport_cases::collectives(world());
}
TEST(MpiTransport, BytesAreCounted) {
  transport_cases::bytes_are_counted(world());
}

TEST(MpiTransport, LauncherTellsRankAndSize) {
  EXPECT_EQ(launched_as().rank, world().rank());
  EXPECT_EQ(launched_as().size, world().size());
  EXPECT_EQ(launched_as().several_machines, world().local_size() < world().size());
  if (world().local_size() == world().size()) {
    EXPECT_EQ(world().local_rank(), world().rank());
  }
}

TEST(MpiTransport, LargeMessagesTravelInParts) {
  const auto parts = make_mpi_transport(40'003);  // rounded down to 40,000
  transport_cases::messages_match_by_tag_in_order(*parts);
  transport_cases::messages_of_many_sizes(*parts);
  transport_cases::allreduce_sums(*parts);
  transport_cases::collectives(*parts);
}

TEST(MpiTransport, SizesThatDifferAreAnError) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  if (world().rank() > 1) return;
  std::vector<std::byte> bytes(world().rank() == 0 ? 10 : 11);
  const Transport::Request request =
      world().rank() == 0 ? world().isend(bytes, 1, 9) : world().irecv(bytes, 0, 9);
  if (world().rank() == 0)
    world().wait({&request, 1});
  else
    EXPECT_THROW(world().wait({&request, 1}), CommError);
}

}  // namespace
}  // namespace lpsgd
