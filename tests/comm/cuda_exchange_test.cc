// The exchange of gradients on a CUDA device over threads, staged through the host: the CPU's bytes.
#include <gtest/gtest.h>

#include "tests/comm/cuda_arena.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

using exchange_cases::MakeArena;

class CudaExchange : public GpuTest {
 protected:
  static constexpr std::initializer_list<const char*> codecs = {
      "mixed",    "none",        "onebit64", "onebit_column",
      "qsgd2",    "qsgd4",       "qsgd16",   "qsgd4_l2_feedback",
      "topk",     "exponential", "interval", "optimal_feedback",
      "majority", "sign",        "dynamic8"};
  void run(int ranks, const std::function<void(Transport&, const MakeArena&)>& body) {
    run_thread_ranks(ranks, [&](Transport& t) {
      body(t, [&](std::size_t size) { return std::make_unique<CudaArena>(device, size); });
    });
  }
};

// (Every codec between other numbers of ranks: cuda_mpi_test.cc.)
TEST_F(CudaExchange, EqualsTheReferenceHoweverItIsCut) {
  const auto check = [&](const char* codec, int ranks) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, ranks, 2);
    run(ranks,
        [&](Transport& t, const MakeArena& a) { exchange_cases::equals_reference(t, setup, expected, a); });
  };
  for (const char* codec : codecs) check(codec, 3);
  for (const int ranks : {1, 2, 5}) check("mixed", ranks);
}

TEST_F(CudaExchange, NoneIsTheMean) {
  for (const Collective collective : {Collective::reduce_broadcast, Collective::allreduce})
    run(3, [&](Transport& t, const MakeArena& a) { exchange_cases::none_is_the_mean(t, collective, a); });
}

TEST_F(CudaExchange, ResidualsContinue) {
  run(2, [&](Transport& t, const MakeArena& a) { exchange_cases::residuals_continue(t, "mixed", a); });
}

TEST_F(CudaExchange, NonFiniteIsNamed) {
  run(3, [&](Transport& t, const MakeArena& a) {
    exchange_cases::non_finite_is_named(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "majority", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "none", Collective::allreduce, a);
  });
  run(1, [&](Transport& t, const MakeArena& a) {
    exchange_cases::non_finite_is_named(t, "none", Collective::reduce_broadcast, a);
  });
}

TEST_F(CudaExchange, BytesAreThoseAnnounced) {
  run(2, [&](Transport& t, const MakeArena& a) {
    exchange_cases::bytes_are_those_announced(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::bytes_are_those_announced(t, "mixed", Collective::simulated, a);
  });
}

TEST_F(CudaExchange, SimulatedDecodesItsOwn) {
  run(2, [&](Transport& t, const MakeArena& a) { exchange_cases::simulated_decodes_its_own(t, "mixed", a); });
}

TEST_F(CudaExchange, ErrorsAreMeasured) {
  run(2, [&](Transport& t, const MakeArena& a) { exchange_cases::errors_are_measured(t, "mixed", a); });
}

}  // namespace
}  // namespace lpsgd
