// Blocks of ranks: those of a machine, or so many.
#include "comm/block_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/transport_over.h"
#include "core/error.h"

namespace lpsgd {
namespace {

/// Threads that say they are on several machines. Nothing but collectives goes through it.
class Machines final : public TransportOver {
 public:
  /// `machines`: of each rank.
  Machines(Transport& inner, const std::vector<int>& machines) : TransportOver(inner), machines_(machines) {}
  int local_rank() const override { return count(rank()); }
  int local_size() const override { return count(size()); }

  Request isend(std::span<const std::byte>, int, int) override { throw CommError("no messages"); }
  Request irecv(std::span<std::byte>, int, int) override { throw CommError("no messages"); }
  Request iallreduce(std::span<float>) override { throw CommError("no messages"); }
  bool test(Request) override { throw CommError("no messages"); }

 private:
  int count(int before) const {
    return static_cast<int>(std::count(machines_.begin(), machines_.begin() + before,
                                       machines_[static_cast<std::size_t>(rank())]));
  }
  const std::vector<int>& machines_;
};

/// Every rank's block, or its error.
std::vector<std::string> blocks_of(const std::vector<int>& machines, int ranks_per_block) {
  std::vector<std::string> out(machines.size());
  run_thread_ranks(static_cast<int>(machines.size()), [&](Transport& threads) {
    Machines all(threads, machines);
    std::string& mine = out[static_cast<std::size_t>(all.rank())];
    try {
      const Block block = block_of(all, ranks_per_block, "sync.ranks_per_block");
      mine = std::to_string(block.size) + " from " + std::to_string(block.first);
    } catch (const ConfigError& e) {
      mine = e.what();
    }
  });
  return out;
}

TEST(BlockOf, ANumberOfRanksSplitsMachinesToo) {
  using testing::ElementsAre;
  EXPECT_THAT(blocks_of({0, 0, 0, 1}, 2), ElementsAre("2 from 0", "2 from 0", "2 from 2", "2 from 2"));
  EXPECT_THAT(blocks_of({0, 0, 0}, 1), ElementsAre("1 from 0", "1 from 1", "1 from 2"));
  EXPECT_THAT(blocks_of({0, 0, 0}, 2),
              testing::Each("sync.ranks_per_block: 3 ranks cannot be divided into blocks of 2"));
}

TEST(BlockOf, ANodeIsAMachine) {
  using testing::Each;
  using testing::ElementsAre;
  EXPECT_THAT(blocks_of({0, 0, 1, 1}, 0), ElementsAre("2 from 0", "2 from 0", "2 from 2", "2 from 2"));
  EXPECT_THAT(blocks_of({4, 1, 3}, 0), ElementsAre("1 from 0", "1 from 1", "1 from 2"));
  EXPECT_THAT(blocks_of({7, 7, 7}, 0), Each("3 from 0"));
}

TEST(BlockOf, MachinesThatAreNoBlocksAreRefusedByAllRanks) {
  using testing::AllOf;
  using testing::Each;
  using testing::HasSubstr;
  using testing::StartsWith;
  const auto refused = [](const std::string& who) {
    return Each(AllOf(StartsWith("sync.ranks_per_block: node needs machines with equally many consecutive"),
                      HasSubstr("but rank " + who + " on; give a number")));
  };
  EXPECT_THAT(blocks_of({0, 1, 0, 1}, 0), refused("1 is one of 2 from rank 1"));  // interleaved
  EXPECT_THAT(blocks_of({0, 1, 1, 0}, 0), refused("1 is one of 2 from rank 1"));
  for (const auto& unequal : {std::vector{0, 0, 1}, std::vector{0, 1, 1}, std::vector{0, 0, 0, 1}})
    EXPECT_THAT(blocks_of(unequal, 0), Each(StartsWith("sync.ranks_per_block: node needs machines")));
}

}  // namespace
}  // namespace lpsgd
