// The exchange of gradients on a CUDA device between processes: over MPI, and over NCCL, whose ranks may
// share one GPU because each says that it is a host of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/nccl_transport.h"
#include "core/error.h"
#include "tests/comm/cuda_arena.h"
#include "tests/core/gpu_test.h"
#include "tests/mpi_main.h"

namespace lpsgd {
namespace {

using exchange_cases::MakeArena;

const char* const codecs[] = {"mixed", "none",   "onebit64",         "onebit_column", "qsgd2",
                              "qsgd4", "qsgd16", "optimal_feedback", "topk",          "majority"};

class CudaRanks : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device = Device::cuda(world().local_rank() % cuda_devices().count);
  }
  MakeArena arenas() const {
    return [d = device](std::size_t size) { return std::make_unique<CudaArena>(d, size); };
  }
};

TEST_F(CudaRanks, OverMpiEqualsTheReference) {
  for (const char* codec : codecs) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, world().size(), 2);
    exchange_cases::equals_reference(world(), setup, expected, arenas());
  }
  exchange_cases::none_is_the_mean(world(), Collective::allreduce, arenas());
  exchange_cases::non_finite_is_named(world(), "mixed", Collective::reduce_broadcast, arenas());
}

class Nccl : public CudaRanks {
 protected:
  void SetUp() override {
    CudaRanks::SetUp();
    if (IsSkipped()) return;
    if (!nccl_missing().empty()) GTEST_SKIP() << nccl_missing();
    ::setenv("NCCL_HOSTID", ("rank" + std::to_string(world().rank())).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    nccl = make_nccl_transport(world(), device);
  }
  std::unique_ptr<Transport> nccl;
};

TEST_F(Nccl, EqualsTheReference) {
  for (const char* codec : codecs) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, world().size(), 2);
    exchange_cases::equals_reference(*nccl, setup, expected, arenas());
  }
}

TEST_F(Nccl, NoneIsTheMean) {
  for (const Collective collective : {Collective::reduce_broadcast, Collective::allreduce})
    exchange_cases::none_is_the_mean(*nccl, collective, arenas());
}

TEST_F(Nccl, ResidualsNanAndBytes) {
  exchange_cases::residuals_continue(*nccl, "mixed", arenas());
  exchange_cases::non_finite_is_named(*nccl, "mixed", Collective::reduce_broadcast, arenas());
  exchange_cases::non_finite_is_named(*nccl, "none", Collective::allreduce, arenas());
  exchange_cases::bytes_are_those_announced(*nccl, "mixed", Collective::reduce_broadcast, arenas());
  exchange_cases::bytes_are_those_announced(*nccl, "mixed", Collective::simulated, arenas());
  exchange_cases::simulated_decodes_its_own(*nccl, "mixed", arenas());
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
