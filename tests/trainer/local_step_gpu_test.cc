// Local steps on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "comm/agree.h"
#include "comm/nccl_transport.h"
#include "core/checksum.h"
#include "core/device.h"
#include "nn/outer_step.h"
#include "quant/policy.h"
#include "tests/core/gpu_test.h"
#include "tests/trainer/gpu_model.h"
#include "trainer/local_step.h"

namespace lpsgd {
namespace {

using LocalStepGpu = GpuTest;

/// An infinity that step 5 exchanges is named by step `found`, and by none before.
void expect_found_in(const std::vector<std::string>& more, int ranks, std::int64_t found, Device device) {
  std::vector<std::string> options{"sync.kind=local_sgd", "sync.steps=6", "optimizer={kind: sgd}",
                                   "exchange.codec=none"};
  options.insert(options.end(), more.begin(), more.end());
  const RunConfig run = small_run(options);
  run_thread_ranks(ranks, [&](Transport& transport) {
    GpuModel model(run, device, 1, 3);
    const std::vector<CodecSpec> codecs(model.network.tensors().size());
    const auto step = make_step(run, codecs, model.network, model.optimizer, transport, nullptr);
    step->set_interval(6);
    model.loader.start(0);
    std::int64_t s = 0;
    for (; s < 5; ++s) step->run(model.loader, s, 0.05);
    const std::vector<float> infinite(1, std::numeric_limits<float>::infinity());
    copy_values(model.network.parameters().first(1), std::span(infinite), model.network.stream());
    for (; s < found; ++s) step->run(model.loader, s, 0.05);
    try {
      step->run(model.loader, s, 0.05);
      ADD_FAILURE() << "no error";
    } catch (const NonFiniteError& e) {
      EXPECT_THAT(e.what(), ::testing::StartsWith("step 5: the change of "));
    }
  });
}

/// Long before the next exchange, and without waiting for the one that found it.
TEST_F(LocalStepGpu, ANonFiniteChangeIsFoundInTheThirdStepAfterIt) {
  expect_found_in({}, 1, 8, device);
}

/// Of a part of the arenas, with momentum and with a share of the own weights.
TEST_F(LocalStepGpu, AnOuterStepOfAPartIsTheCpus) {
  constexpr std::size_t size = 400, first = 48, part = 200;
  const Stream stream(device);
  const OuterOptions options{.momentum = 0.9, .rate = 0.7, .nesterov = true};
  const auto on_gpu = make_outer_step(options, size, stream), on_cpu = make_outer_step(options, size, {});
  std::vector<float> start(size), own(size), mean(size);
  for (std::size_t i = 0; i < size; ++i) {
    start[i] = 0.01f * static_cast<float>(i);
    own[i] = start[i] - 0.3f + 0.001f * static_cast<float>(i);
    mean[i] = 1.0f / static_cast<float>(i + 1);
  }
  struct Arenas {
    std::vector<float> weights, d, s, u;
  };
  const auto run = [&](OuterStep& step, Device where, StreamView queue) {
    DeviceBuffer<float> weights(where, size), d(where, size), means(where, size);
    copy_values(d.view(), std::span<const float>(mean), queue);
    copy_values(means.view(), std::span<const float>(mean), queue);
    copy_values(weights.view(), std::span<const float>(start), queue);
    step.start(weights.view());
    copy_values(weights.view(), std::span<const float>(own), queue);
    step.difference(weights.view().subspan(first, part), d.view().subspan(first, part), first);
    for (const double mix : {0.0, 0.25})
      step.apply(weights.view().subspan(first, part), means.view().subspan(first, part), first, mix);
    Arenas out;
    const auto read = [&](std::span<const float> from, std::vector<float>& to) {
      to.resize(from.size());
      copy_values(std::span(to), from, queue);
    };
    read(weights.view(), out.weights);
    read(d.view(), out.d);
    read(step.synchronised(), out.s);
    read(step.momentum(), out.u);
    queue.synchronize();
    return out;
  };
  const Arenas gpu = run(*on_gpu, device, stream), cpu = run(*on_cpu, {}, {});
  EXPECT_EQ(gpu.weights, cpu.weights);
  EXPECT_EQ(gpu.d, cpu.d);
  EXPECT_EQ(gpu.s, cpu.s);
  EXPECT_EQ(gpu.u, cpu.u);
  for (const std::size_t outside : {std::size_t{0}, first - 1, first + part, size - 1}) {
    EXPECT_EQ(gpu.weights[outside], own[outside]);
    EXPECT_EQ(gpu.s[outside], start[outside]);
    EXPECT_EQ(gpu.d[outside], mean[outside]);
  }
}

/// While an exchange is on its way the device computes local steps, and the host waits for it where it needs
/// the transport.
TEST_F(LocalStepGpu, CollectivesOnTheWayChangeNothing) {
  const RunConfig run = small_run({"sync.kind=block_momentum", "sync.steps=6", "sync.fragments=2",
                                   "sync.delay=2", "optimizer={kind: sgd}", "exchange.codec=onebit"});
  run_thread_ranks(2, [&](Transport& transport) {
    std::vector<std::vector<float>> weights;
    for (const bool collectives : {false, true}) {
      GpuModel model(run, device, 1, 3);
      const std::vector<CodecSpec> codecs = assign_codecs(run.exchange.policy, model.network.tensors());
      const auto step = make_step(run, codecs, model.network, model.optimizer, transport, nullptr);
      step->set_interval(6);
      model.loader.start(transport.rank());  // each rank has batches of its own
      for (std::int64_t s = 0; s < 14; ++s) {
        step->run(model.loader, s, 0.05);
        if (collectives && s % 2 == 0) transport.barrier();
        if (collectives && s % 3 == 0) {
          EXPECT_TRUE(step->replicas_equal());
          step->check_finite();
        }
      }
      step->check_finite();
      EXPECT_TRUE(step->replicas_equal());
      EXPECT_EQ(step->take({}).exchanges, 4);
      weights.push_back(model.weights());
    }
    EXPECT_EQ(weights[0], weights[1]);
    EXPECT_FALSE(transport.all_equal(checksum64(std::as_bytes(std::span(weights[0])))));
  });
}

/// Local steps become one graph each, and so do steps over an ordered transport: the micro-batches in front
/// of the last one are launched beside it.
TEST_F(LocalStepGpu, MicroBatchesOfCapturedStepsAreTheSame) {
  for (const std::string micro_batches : {"1", "2", "3"}) {
    for (const char* const sync : {"{kind: local_sgd, steps: 4}", "{kind: every_step}"}) {
      std::vector<std::vector<float>> weights;
      for (const char* const graphs : {"true", "false"}) {
        const RunConfig run =
            small_run({std::string("sync=") + sync, "train.micro_batches=" + micro_batches,
                       std::string("train.cuda_graphs=") + graphs, "exchange.codec=onebit"});
        run_thread_ranks(1, [&](Transport& transport) {
          const auto nccl = make_nccl_transport(transport, device);
          GpuModel model(run, device, 1, 3);
          const std::vector<CodecSpec> codecs = assign_codecs(run.exchange.policy, model.network.tensors());
          const auto step = make_step(run, codecs, model.network, model.optimizer, *nccl, nullptr);
          step->set_interval(run.sync.steps);
          model.loader.start(0);
          for (std::int64_t s = 0; s < 12; ++s) step->run(model.loader, s, 0.05);
          step->check_finite();
          weights.push_back(model.weights());
        });
      }
      ASSERT_EQ(weights.size(), 2u);
      EXPECT_EQ(weights[0], weights[1]) << micro_batches << " micro-batches, " << sync;
    }
  }
}

/// Steps with other exchanges are captured anew, and so are the segments of backward.
TEST_F(LocalStepGpu, TheWarmupOfCodecsIsTheSameInGraphs) {
  for (const bool ordered : {true, false})
    for (const char* const sync :
         {"{kind: every_step}", "{kind: local_sgd, steps: 2}",
          "{kind: hierarchical_local_sgd, steps: 1, block_steps: 2, ranks_per_block: 1}",
          "{kind: block_momentum, steps: 4, fragments: 2, delay: 1}"}) {
      std::vector<std::vector<float>> weights;
      for (const char* const graphs : {"true", "false"}) {
        const RunConfig run =
            small_run({std::string("sync=") + sync, std::string("train.cuda_graphs=") + graphs,
                       "exchange.codec=onebit"});
        run_thread_ranks(ordered ? 1 : 2, [&](Transport& threads) {
          const auto nccl = ordered ? make_nccl_transport(threads, device) : nullptr;
          Transport& transport = ordered ? *nccl : threads;
          GpuModel model(run, device, 1, 3);
          const std::vector<CodecSpec> codecs = assign_codecs(run.exchange.policy, model.network.tensors());
          const auto step = make_step(run, codecs, model.network, model.optimizer, transport, nullptr);
          step->set_interval(run.sync.steps);
          model.loader.start(transport.rank());
          for (std::int64_t s = 0; s < 18; ++s) {
            if (s % 9 == 0) {
              step->settle();
              step->check_finite();
              step->take({});
              step->set_warmup(s == 0);
            }
            step->run(model.loader, s, 0.05);
          }
          step->check_finite();
          EXPECT_TRUE(step->replicas_equal());
          if (threads.rank() == 0) weights.push_back(model.weights());
        });
      }
      ASSERT_EQ(weights.size(), 2u);
      EXPECT_EQ(weights[0], weights[1]) << sync << (ordered ? " over NCCL" : "");
    }
}

TEST_F(LocalStepGpu, ANonFiniteChangeIsFoundAfterADelay) {
  expect_found_in({"sync.delay=2"}, 2, 10, device);
}

}  // namespace
}  // namespace lpsgd
