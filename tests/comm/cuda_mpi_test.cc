// The exchange of gradients on a CUDA device between processes, over MPI and over NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/capture.h"
#include "core/error.h"
#include "tests/comm/cuda_ranks.h"

namespace lpsgd {
namespace {

/// A mix of codecs however they are cut, and each codec cut once.
void equals_reference(Transport& transport, std::uint32_t steps, const exchange_cases::MakeArena& arenas) {
  const auto expected = [&](const ExchangeSetup& setup) {
    return reference_means(setup, {world().size()}, steps);
  };
  const ExchangeSetup mixed = make_setup("mixed");
  exchange_cases::equals_reference(transport, mixed, expected(mixed), arenas);
  for (const NamedCodec& codec : tested_codecs()) {
    const ExchangeSetup setup = make_setup(codec.name);
    const ExchangeOptions options = exchange_cases::all_options(setup)[1];  // cuts and packs
    exchange_cases::equals_reference(transport, setup, expected(setup), options, arenas);
  }
}

TEST_F(CudaRanks, OverMpiEqualsTheReference) {
  equals_reference(world(), 2, arenas());
  exchange_cases::none_is_the_mean(world(), Collective::allreduce, arenas());
  exchange_cases::non_finite_is_named(world(), "mixed", Collective::reduce_broadcast, arenas());
}

TEST_F(Nccl, EqualsTheReference) {
  equals_reference(*nccl, 3, arenas());
}

TEST_F(Nccl, NoneIsTheMean) {
  for (const Collective collective : {Collective::reduce_broadcast, Collective::allreduce})
    exchange_cases::none_is_the_mean(*nccl, collective, arenas());
}

/// Of two ranks, or all ranks as one block. With four ranks (tests/comm/CMakeLists.txt) there are two.
exchange_cases::Way in_blocks() {
  return {Collective::hierarchical, world().size() % 2 == 0 ? 2 : world().size()};
}

TEST_F(CudaRanks, BlocksOverMpi) {
  for (const char* codec : {"mixed", "optimal_feedback"}) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {world().size(), in_blocks().ranks_per_block}, 2);
    exchange_cases::equals_reference(world(), setup, expected, arenas(), in_blocks());
  }
}

TEST_F(Nccl, Blocks) {
  for (const char* codec : {"mixed", "none", "qsgd4", "onebit_column", "optimal_feedback"}) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {world().size(), in_blocks().ranks_per_block}, 3);
    exchange_cases::equals_reference(*nccl, setup, expected, arenas(), in_blocks());
  }
  exchange_cases::residuals_continue(*nccl, "mixed", arenas(), in_blocks());
  exchange_cases::parts_are_the_whole(*nccl, "mixed", in_blocks(), arenas());
  exchange_cases::non_finite_is_named(*nccl, "mixed", in_blocks(), arenas());
  exchange_cases::bytes_are_those_announced(*nccl, "mixed", in_blocks(), arenas());
}

/// The results of run_steps(), whose gradients are overwritten with other values before each step.
struct Steps {
  exchange_cases::Means means;
  std::vector<NonFinite> found;
  std::vector<CodingError> errors;
  ExchangeState state;
  ExchangeStats stats;
  std::uint64_t bytes = 0, messages = 0;
};

/// `launched`: after two plain steps two are captured, and the later ones launch these graphs. `waits`: the
/// host reads every step's result; otherwise only the last one's, so that it is ahead of the device.
Steps run_steps(Transport& transport, const ExchangeSetup& setup, const ExchangeOptions& options,
                Device device, bool launched, bool waits) {
  constexpr std::uint32_t steps = 9, non_finite = 6;
  CudaArena arena(device, setup.arena);
  DeviceBuffer<float> source(device, setup.arena), unfinished(device, setup.arena);
  PinnedBuffer<float> gradients(device, steps * setup.arena);
  const ExchangeOptions adapted = arena.adapt(options);
  const StreamView compute = adapted.compute;
  Exchange exchange(transport, setup.tensors, setup.codecs, arena.values(), setup.order, adapted);
  EXPECT_TRUE(exchange.can_capture());
  std::array<CapturedGraph, 2> graphs;
  Steps out;
  out.errors.resize(setup.tensors.size());
  const std::uint64_t bytes = transport.bytes_sent(), messages = transport.messages_sent();
  const std::vector<float> other(setup.arena, 1234.5f);
  copy_values(unfinished.view(), other, compute);
  const auto work = [&] {
    copy_values(arena.values(), unfinished.view(), compute);
    for (const std::size_t t : setup.order) {
      const auto first = static_cast<std::size_t>(setup.tensors[t].offset);
      const auto n = static_cast<std::size_t>(setup.tensors[t].elements);
      copy_values(arena.values().subspan(first, n), source.view().subspan(first, n), compute);
      exchange.submit(t);
    }
    exchange.finish();
  };
  for (std::uint32_t step = 0; step < steps; ++step) {
    std::vector<float> own = setup.gradients(transport.rank(), step);
    if (step == non_finite && transport.rank() == transport.size() - 1)
      own[static_cast<std::size_t>(setup.tensors[3].offset)] = std::numeric_limits<float>::quiet_NaN();
    const std::span<float> pinned = gradients.view().subspan(step * setup.arena, setup.arena);
    std::copy(own.begin(), own.end(), pinned.begin());
    copy_values(source.view(), pinned, compute);
    exchange.begin(step);
    if (launched && step >= 2) {
      CapturedGraph& graph = graphs[step % 2];
      if (step < 4) graph.capture(compute, work);
      graph.launch(compute);
      exchange.launched();
    } else {
      work();
    }
    if (waits && step == 4) out.state = exchange.state();
    if (waits && options.measure_error && (step == 4 || step == 5)) exchange.take_errors(out.errors);
    out.found.push_back(exchange.check_finite(true));
    if (waits || step == steps - 1) out.means.push_back(arena.read());
  }
  out.found.push_back(exchange.check_finite());
  out.stats = exchange.take_stats();
  out.bytes = transport.bytes_sent() - bytes;
  out.messages = transport.messages_sent() - messages;
  return out;
}

// A graph must not keep a step's number, gradients, residuals or times.
TEST_F(Nccl, LaunchedStepsAreTheSame) {
  const std::pair<const char*, Collective> cases[] = {{"mixed", Collective::reduce_broadcast},
                                                      {"qsgd4", Collective::reduce_broadcast},
                                                      {"optimal_feedback", Collective::reduce_broadcast},
                                                      {"topk", Collective::reduce_broadcast},
                                                      {"none", Collective::reduce_broadcast},
                                                      {"mixed", Collective::hierarchical},
                                                      {"none", Collective::allreduce},
                                                      {"mixed", Collective::simulated}};
  for (const auto& [codec, collective] : cases) {
    const ExchangeSetup setup = make_setup(codec);
    const std::vector<ExchangeOptions> cuts = exchange_cases::all_options(setup);
    for (ExchangeOptions options : {cuts[1], cuts[3]}) {  // many units in flight, and none before finish()
      if (!options.overlap && codec != cases[0].first) continue;
      SCOPED_TRACE(codec + std::string(", chunks of ") + std::to_string(options.chunk_bytes));
      options.collective = collective;
      options.ranks_per_block = in_blocks().ranks_per_block;
      options.measure_error = collective != Collective::allreduce;
      const Steps plain = run_steps(*nccl, setup, options, device, false, true);
      const Steps launched = run_steps(*nccl, setup, options, device, true, true);
      const Steps ahead = run_steps(*nccl, setup, options, device, true, false);
      EXPECT_EQ(std::memcmp(plain.means.back().data(), ahead.means[0].data(), setup.arena * sizeof(float)),
                0);
      EXPECT_EQ(ahead.found[7].tensor, 3);
      EXPECT_EQ(ahead.found[7].step, 6u);
      EXPECT_EQ(ahead.stats.bytes_sent, plain.stats.bytes_sent);
      for (std::size_t s = 0; s < plain.means.size(); ++s)
        EXPECT_EQ(std::memcmp(plain.means[s].data(), launched.means[s].data(), setup.arena * sizeof(float)),
                  0)
            << "step " << s;
      EXPECT_EQ(launched.state.round1, plain.state.round1);
      EXPECT_EQ(launched.state.round2, plain.state.round2);
      for (std::size_t s = 0; s < plain.found.size(); ++s) {
        EXPECT_EQ(launched.found[s].tensor, plain.found[s].tensor) << s;
        EXPECT_EQ(launched.found[s].rank, plain.found[s].rank) << s;
        EXPECT_EQ(launched.found[s].step, plain.found[s].step) << s;
      }
      EXPECT_EQ(plain.found[7].tensor, 3);
      for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
        // Sums of squares over blocks have no fixed order.
        EXPECT_NEAR(launched.errors[t].gradient, plain.errors[t].gradient, 1e-9 * plain.errors[t].gradient);
        EXPECT_NEAR(launched.errors[t].error, plain.errors[t].error, 1e-9 * plain.errors[t].error);
      }
      EXPECT_EQ(launched.stats.bytes_sent, plain.stats.bytes_sent);
      EXPECT_EQ(launched.bytes, plain.bytes);
      EXPECT_EQ(launched.messages, plain.messages);
      EXPECT_GT(launched.stats.encode, 0);
      EXPECT_GT(launched.stats.decode, 0);
      EXPECT_GT(launched.stats.exposed, 0);
      EXPECT_GE(launched.stats.transfer, 0);
    }
  }
}

TEST_F(Nccl, ResidualsNanAndBytes) {
  exchange_cases::residuals_continue(*nccl, "mixed", arenas());
  exchange_cases::parts_are_the_whole(*nccl, "mixed", Collective::reduce_broadcast, arenas());
  exchange_cases::non_finite_is_named(*nccl, "mixed", Collective::reduce_broadcast, arenas());
  exchange_cases::non_finite_is_named(*nccl, "majority", Collective::reduce_broadcast, arenas());
  exchange_cases::non_finite_is_named(*nccl, "none", Collective::allreduce, arenas());
  exchange_cases::non_finite_is_named(*nccl, "qsgd4", Collective::simulated, arenas());
  exchange_cases::bytes_are_those_announced(*nccl, "mixed", Collective::reduce_broadcast, arenas());
  exchange_cases::bytes_are_those_announced(*nccl, "mixed", Collective::simulated, arenas());
  exchange_cases::bytes_are_those_announced(*nccl, "none", Collective::allreduce, arenas());
  exchange_cases::simulated_decodes_its_own(*nccl, "mixed", arenas());
  exchange_cases::errors_are_measured(*nccl, "mixed", arenas());
}

TEST_F(Nccl, RanksWithOtherCodecsFail) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const ExchangeSetup setup = make_setup(world().rank() == 1 ? "qsgd4" : "qsgd8");
  EXPECT_THROW(exchange_cases::run(*nccl, setup, {}, 1, arenas()), CommError);
}

TEST_F(Nccl, UnsupportedOptionsAreRefused) {
  const ExchangeSetup setup = make_setup("none");
  CudaArena arena(device, setup.arena);
  std::vector<float> host(setup.arena);
  const auto refused = [&](std::span<float> gradients, const ExchangeOptions& options) -> std::string {
    try {
      Exchange(*nccl, setup.tensors, setup.codecs, gradients, setup.order, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 2);
      return error.what();
    }
    return "";
  };
  ExchangeOptions options = arena.adapt({});
  options.device_pointers = false;
  EXPECT_EQ(refused(arena.values(), options),
            "exchange.device_pointers: the transport nccl takes device memory alone; allowed: auto, true");
  EXPECT_EQ(refused(host, {}),
            "exchange.transport: nccl moves device memory alone, but gradients are on the CPU; use mpi");
}

TEST_F(CudaRanks, NcclRefusesRanksThatShareAGpu) {
  if (world().size() <= cuda_devices().count) GTEST_SKIP() << "every rank has a GPU";
  if (!nccl_missing().empty()) GTEST_SKIP() << nccl_missing();
  ::unsetenv("NCCL_HOSTID");
  try {
    make_nccl_transport(world(), device);
    ADD_FAILURE() << "accepted";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("share one GPU"));
    EXPECT_THAT(error.what(), testing::HasSubstr("NCCL_HOSTID"));
  }
}

}  // namespace
}  // namespace lpsgd
