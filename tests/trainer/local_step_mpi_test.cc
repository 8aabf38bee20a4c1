// Every kind of `sync` over MPI: the same bytes as over threads, which other tests compare with the formulas
// (local_step_test.cc, tests/cli/local_sgd_reference_test.py).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/mpi_main.h"
#include "tests/trainer/local_run.h"

namespace lpsgd {
namespace {

using namespace local_run;

std::vector<Overrides> variants(int ranks) {
  std::vector<Overrides> out{
      {"sync.kind=every_step"},
      local,
      {"sync.kind=local_sgd", "sync.steps=5", "sync.reset_momentum=true"},  // ends within a phase
      {"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1"},
      {"sync.kind=block_momentum", "sync.steps=3", "sync.momentum=0.5", "sync.rate=0.75"},
      {"sync.kind=block_momentum", "sync.steps=2", "sync.rate=0.7", "sync.nesterov=true"},
      {"sync.kind=local_sgd", "sync.steps=4", "sync.fragments=2"},
      with(local, {"sync.delay=2"}),
      streamed};
  for (const char* warmup : {"constant", "linear", "exponential"})
    out.push_back({"sync.kind=local_sgd", "sync.steps=4", "sync.warmup_epochs=1",
                   std::string("sync.warmup=") + warmup});
  for (int size = 1; size <= ranks; ++size)
    if (ranks % size == 0)
      out.push_back(with(hierarchical, {"sync.ranks_per_block=" + std::to_string(size)}));
  return out;
}

std::vector<float> trained(const RunConfig& run, Transport& transport) {
  Rank rank(run, transport);
  rank.train(0, steps);
  rank.step->check_finite();  // waits for what is on its way
  return rank.weights();
}

TEST(LocalStepMpi, TrainsWhatThreadsTrain) {
  Transport& mpi = world();
  const auto ranks = static_cast<std::size_t>(mpi.size());
  for (const Overrides& variant : variants(mpi.size()))
    for (const char* codec : {"none", "{kind: sign, error_feedback: false}", "sign", "onebit",
                              "{kind: qsgd, bits: 4, bucket: 64}"}) {
      const RunConfig run = small_run(with({std::string("exchange.codec=") + codec}, variant));
      const std::vector<float> mine = trained(run, mpi);
      std::vector<float> all(mine.size() * ranks);
      mpi.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
      if (mpi.rank() > 0) continue;
      run_thread_ranks(mpi.size(), [&](Transport& threads) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * threads.rank();
        EXPECT_TRUE(trained(run, threads) ==
                    std::vector<float>(first, first + static_cast<std::ptrdiff_t>(mine.size())))
            << variant.back() << ", " << codec << ", rank " << threads.rank();
      });
    }
}

/// The library adds in an order of its own.
TEST(LocalStepMpi, AllreduceTrainsWhatReduceBroadcastTrains) {
  for (const Overrides& variant : variants(1)) {
    if (variant[0] == "sync.kind=hierarchical_local_sgd") continue;  // refused
    const auto with_collective = [&](const char* collective) {
      return small_run(
          with({"exchange.codec=none", std::string("exchange.collective=") + collective}, variant));
    };
    const std::vector<float> got = trained(with_collective("allreduce"), world()),
                             expected = trained(with_collective("reduce_broadcast"), world());
    EXPECT_LT(worst_difference(got, expected), 1e-6) << variant.back();
  }
}

}  // namespace
}  // namespace lpsgd
