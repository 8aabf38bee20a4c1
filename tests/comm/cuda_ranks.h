// Ranks under mpirun with gradients on a CUDA device. Over NCCL they may share one GPU, because each has its
// own NCCL_HOSTID.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "comm/nccl_transport.h"
#include "tests/comm/cuda_arena.h"
#include "tests/core/gpu_test.h"
#include "tests/mpi_main.h"

namespace lpsgd {

class CudaRanks : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device = Device::cuda(world().local_rank() % cuda_devices().count);
  }
  exchange_cases::MakeArena arenas() const {
    return [d = device](std::size_t size) { return std::make_unique<CudaArena>(d, size); };
  }
};

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

}  // namespace lpsgd
