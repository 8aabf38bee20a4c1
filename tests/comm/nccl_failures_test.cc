// Ranks that leave, stop or never join a step while others exchange gradients over NCCL.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/capture.h"
#include "core/error.h"
#include "tests/comm/captured_log.h"
#include "tests/comm/cuda_ranks.h"

namespace lpsgd {
namespace {

// A step whose messages did not arrive must fail. The communicator can only be destroyed after the graphs
// that hold it. (NCCL_HOSTID makes the ranks different hosts, so NCCL detects that a connection closes.)
TEST_F(Nccl, ARankThatLeavesEndsTheLaunchesOfTheOthers) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const bool leaves = world().rank() == world().size() - 1;
  {
    const ExchangeSetup setup = make_setup("qsgd4");
    CudaArena arena(device, setup.arena);
    const ExchangeOptions options = arena.adapt({});
    Exchange exchange(*nccl, setup.tensors, setup.codecs, arena.values(), setup.order, options);
    std::array<CapturedGraph, 2> graphs;
    const auto work = [&] {
      for (const std::size_t t : setup.order) exchange.submit(t);
      exchange.finish();
    };
    const auto step = [&](std::uint32_t number) {
      exchange.begin(number);
      if (number < 2) return work();
      CapturedGraph& graph = graphs[number % 2];
      if (number < 4) graph.capture(options.compute, work);
      graph.launch(options.compute);
      exchange.launched();
    };
    std::uint32_t number = 0;
    while (number < 6) step(number++);  // the last one is running when the rank leaves
    if (!leaves) {
      step(number++);
      EXPECT_THROW(exchange.check_finite(), CommError);
      EXPECT_THROW(exchange.begin(number), CommError);
      EXPECT_THROW(exchange.take_stats(), CommError);
    }
  }
  nccl.reset();
  world().barrier();
}

// A rank that stops in the middle of a step.
TEST_F(Nccl, AnAbandonedStepEndsTheStepsOfTheOthers) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const ExchangeSetup setup = make_setup("qsgd4");
  CudaArena arena(device, setup.arena);
  {
    const auto options = exchange_cases::all_options(setup)[1];
    Exchange exchange(*nccl, setup.tensors, setup.codecs, arena.values(), setup.order, arena.adapt(options));
    exchange_cases::exchange_step(exchange, setup, 0, arena, setup.gradients(world().rank(), 0));
    exchange.begin(1);
    if (world().rank() == 0) {
      for (std::size_t i = 0; i < 5; ++i) exchange.submit(setup.order[i]);
    } else {
      EXPECT_THROW(
          {
            for (const std::size_t t : setup.order) exchange.submit(t);
            exchange.finish();
            exchange.check_finite();
          },
          CommError);
      EXPECT_THROW(exchange.begin(2), CommError);  // and stays failed
    }
  }
  nccl.reset();
  world().barrier();
}

std::string warning(std::uint32_t step, const std::string& tensor) {
  return fmt::format("step {}: the exchange of {} has waited ", step, tensor);
}

/// The limit of steps, in seconds, for its scope.
class StepLimit {
 public:
  explicit StepLimit(double seconds) : before_(world().collectives().limits) {
    world().collectives().limits.step = {seconds, "exchange.timeout"};
  }
  ~StepLimit() { world().collectives().limits = before_; }
  StepLimit(const StepLimit&) = delete;
  StepLimit& operator=(const StepLimit&) = delete;

 private:
  const Limits before_;
};

/// NCCL connects two ranks with their first message, which may take longer than the limits here.
void connect_ranks(Transport& nccl, Device device) {
  const ExchangeSetup setup = make_setup("qsgd4");
  CudaArena arena(device, setup.arena);
  Exchange exchange(nccl, setup.tensors, setup.codecs, arena.values(), setup.order, arena.adapt({}));
  exchange_cases::exchange_step(exchange, setup, 0, arena, setup.gradients(world().rank(), 0));
}

TEST_F(Nccl, AMissingRankIsReported) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const CapturedLog log;
  const bool missing = world().rank() == 0;
  const ExchangeSetup setup = make_setup("qsgd4");
  const auto expected = reference_means(setup, {world().size()}, 2);
  ExchangeOptions options = exchange_cases::all_options(setup)[2];  // a unit holds one tensor
  connect_ranks(*nccl, device);
  const StepLimit limit(4);  // a warning a second
  CudaArena arena(device, setup.arena);
  Exchange exchange(*nccl, setup.tensors, setup.codecs, arena.values(), setup.order, arena.adapt(options));
  for (std::uint32_t step = 0; step < 2; ++step) {
    std::this_thread::sleep_for(std::chrono::seconds(missing && step == 1 ? 3 : 1));
    const auto means =
        exchange_cases::exchange_step(exchange, setup, step, arena, setup.gradients(world().rank(), step));
    EXPECT_EQ(exchange_cases::tensor_values(setup, means),
              exchange_cases::tensor_values(setup, expected[step]));
  }
  world().barrier();
  // The first unit that this rank receives from the missing one is the first or second.
  const int first = log.count(warning(1, setup.tensors[setup.order[0]].name)) +
                    log.count(warning(1, setup.tensors[setup.order[1]].name));
  EXPECT_GE(first, missing ? 0 : 1) << log.text();  // after 1 s, perhaps after 2 s
  EXPECT_LE(first, missing ? 0 : 2) << log.text();
  EXPECT_EQ(log.count("has waited"), first) << log.text();
  EXPECT_EQ(log.count("for other ranks"), log.count("has waited"));
}

TEST_F(Nccl, AMissingRankEndsTheStepAtTheLimit) {
  if (world().size() == 1) GTEST_SKIP() << "needs another rank";
  const bool missing = world().rank() == 0;
  const ExchangeSetup setup = make_setup("qsgd4");
  std::string error;
  connect_ranks(*nccl, device);
  {
    const StepLimit limit(1);
    CudaArena arena(device, setup.arena);
    Exchange exchange(*nccl, setup.tensors, setup.codecs, arena.values(), setup.order, arena.adapt({}));
    exchange_cases::exchange_step(exchange, setup, 0, arena, setup.gradients(world().rank(), 0));
    if (missing) std::this_thread::sleep_for(std::chrono::seconds(3));
    try {
      exchange_cases::exchange_step(exchange, setup, 1, arena, setup.gradients(world().rank(), 1));
      exchange.check_finite();
    } catch (const CommError& e) {
      error = e.what();
    }
    let_process_live();
  }
  nccl.reset();
  if (missing)
    EXPECT_NE(error, "");
  else
    EXPECT_THAT(error,
                testing::MatchesRegex("step 1: the exchange of .* has waited [12] s for other ranks, as "
                                      "long as exchange.timeout allows"));
  world().barrier();
}

// A launched graph that makes no progress. (The emulated GPU runs nothing until the host waits for it, except
// one task at each query of the exchange's watching thread.)
TEST_F(Nccl, ALaunchWithoutProgressIsReported) {
  if (world().size() > 1 || std::getenv("LPSGD_EMULATED_ORDER") != nullptr ||
      cuda_device_info(device.index).name.find("emulates") == std::string::npos)
    GTEST_SKIP() << "needs the emulated GPU, which waits for the host, and one rank";
  const CapturedLog log;
  const ExchangeSetup setup = make_setup("qsgd4");
  ExchangeOptions options = exchange_cases::all_options(setup)[2];
  const StepLimit limit(1.2);
  CudaArena arena(device, setup.arena);
  const ExchangeOptions adapted = arena.adapt(options);
  Exchange exchange(*nccl, setup.tensors, setup.codecs, arena.values(), setup.order, adapted);
  CapturedGraph graph;
  const auto work = [&] {
    for (const std::size_t t : setup.order) exchange.submit(t);
    exchange.finish();
  };
  for (std::uint32_t step = 0; step < 4; ++step) {
    exchange.begin(step);
    if (step % 2 == 0) {
      work();
    } else {
      if (step == 1) graph.capture(adapted.compute, work);
      for (int i = 0; i < 400; ++i) zero_bytes(arena.values().data(), sizeof(float), adapted.compute);
      graph.launch(adapted.compute);
      exchange.launched();
    }
    if (step == 3) std::this_thread::sleep_for(std::chrono::seconds(1));
    arena.read();
  }
  EXPECT_GE(log.count(warning(3, setup.tensors[setup.order[0]].name)), 1) << log.text();
  EXPECT_EQ(log.count("has waited"), log.count(warning(3, setup.tensors[setup.order[0]].name))) << log.text();
}

// Whoever watches for a hang must not end the process: the caller has messages and an exit status for it.
TEST_F(Nccl, AnErrorOfTheDeviceIsThrownToTheCaller) {
  if (cuda_device_info(device.index).name.find("emulates") == std::string::npos)
    GTEST_SKIP() << "needs the emulated GPU, which can be made to fail";
  const ExchangeSetup setup = make_setup("qsgd4");
  ExchangeOptions options = exchange_cases::all_options(setup)[2];
  const StepLimit limit(1.2);
  CudaArena arena(device, setup.arena);
  Exchange exchange(*nccl, setup.tensors, setup.codecs, arena.values(), setup.order, arena.adapt(options));
  ::setenv("LPSGD_EMULATED_FAILURE", "1", 1);
  exchange.begin(0);
  for (const std::size_t t : setup.order) exchange.submit(t);
  exchange.finish();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the watch looks every 5
  EXPECT_THROW(exchange.begin(1), DeviceError);
  ::unsetenv("LPSGD_EMULATED_FAILURE");
}

}  // namespace
}  // namespace lpsgd
