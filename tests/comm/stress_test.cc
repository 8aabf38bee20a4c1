// A thousand steps of the whole pipeline over threads: "backward" writes a gradient while earlier ones are
// coded and sent. For the thread and address sanitizers (docs/developing.md); results are checked, too.
#include <gtest/gtest.h>

#include <ostream>

#include "comm/link.h"
#include "core/checksum.h"
#include "core/trace.h"
#include "tests/comm/exchange_cases.h"

namespace lpsgd {
namespace {

constexpr std::uint32_t steps = 1000, patterns = 4;

struct StressCase {
  int ranks;
  const char* name;
  const char* codec;
  Collective collective = Collective::reduce_broadcast;
  double link = 0;  // bits a second
  int ranks_per_block = 1;

  friend void PrintTo(const StressCase& c, std::ostream* out) { *out << c.name << " of " << c.ranks; }
};

const StressCase cases[] = {
    {2, "mixed", "mixed"},
    {3, "mixed", "mixed"},
    {4, "mixed", "mixed"},
    {5, "mixed", "mixed"},
    {3, "none", "none"},
    {4, "onebit", "onebit64"},
    {2, "link", "qsgd4", Collective::reduce_broadcast, 2e9},
    {4, "blocks", "mixed", Collective::hierarchical, 0, 2},
    {3, "allreduce", "none", Collective::allreduce},
    {2, "simulated", "qsgd8", Collective::simulated},
};

class ExchangeStress : public testing::TestWithParam<StressCase> {};
INSTANTIATE_TEST_SUITE_P(, ExchangeStress, testing::ValuesIn(cases), [](const auto& p) {
  return std::string(p.param.name) + "_" + std::to_string(p.param.ranks);
});

std::uint64_t hash(const ExchangeSetup& setup, const std::vector<float>& arena) {
  const std::vector<float> values = exchange_cases::tensor_values(setup, arena);
  return checksum64(std::as_bytes(std::span(values)));
}

TEST_P(ExchangeStress, AThousandSteps) {
  const StressCase& c = GetParam();
  const ExchangeSetup setup = make_setup(c.codec);
  std::vector<std::vector<std::uint64_t>> hashes(static_cast<std::size_t>(c.ranks));
  run_thread_ranks(c.ranks, [&](Transport& inner) {
    std::unique_ptr<Transport> linked;
    if (c.link > 0) linked = make_linked_transport(inner, {.bandwidth = c.link, .latency = 5e-6});
    Transport& transport = linked ? *linked : inner;
    std::vector<std::vector<float>> gradients;
    for (std::uint32_t p = 0; p < patterns; ++p) gradients.push_back(setup.gradients(transport.rank(), p));

    Trace trace(std::size_t{1} << 13);  // smaller than the spans written
    ExchangeOptions options;
    options.collective = c.collective;
    options.ranks_per_block = c.ranks_per_block;
    options.seed = setup.seed;
    options.chunk_bytes = 8192;
    options.pack_bytes = 512;
    options.units_in_flight = 3;
    options.measure_error = true;
    options.trace = &trace;
    std::vector<float> arena(setup.arena);
    Exchange exchange(transport, setup.tensors, setup.codecs, arena, setup.order, options);
    std::vector<CodingError> errors(setup.tensors.size());
    // Compared at the end: a comparison in each step would synchronise the ranks.
    std::vector<std::uint64_t>& mine = hashes[static_cast<std::size_t>(transport.rank())];
    for (std::uint32_t step = 0; step < steps; ++step) {
      exchange.begin(step);
      for (const std::size_t t : setup.order) {
        const auto first = gradients[step % patterns].begin() + setup.tensors[t].offset;
        std::copy(first, first + setup.tensors[t].elements, arena.begin() + setup.tensors[t].offset);
        exchange.submit(t);
      }
      exchange.finish();
      EXPECT_EQ(exchange.check_finite().tensor, -1);
      exchange.take_errors(errors);
      EXPECT_GE(exchange.take_stats().transfer, 0);
      mine.push_back(hash(setup, arena));
    }
    EXPECT_GT(trace.dropped(), 0u);
  });
  if (c.collective == Collective::simulated) return;  // each rank keeps its own
  for (const auto& of_rank : hashes) EXPECT_EQ(of_rank, hashes[0]);
  if (c.collective == Collective::allreduce) return;  // the transport's order of addition
  const auto means = reference_means(setup, {c.ranks, c.ranks_per_block}, 3);
  for (std::size_t step = 0; step < means.size(); ++step)
    EXPECT_EQ(hashes[0][step], hash(setup, means[step])) << "step " << step;
}

}  // namespace
}  // namespace lpsgd
