// The small run's network on a GPU, trained from a loader.
#pragma once

#include <string>
#include <vector>

#include "tests/trainer/small_run.h"
#include "trainer/batch_inputs.h"

namespace lpsgd {

struct GpuModel {
  GpuModel(const RunConfig& run, Device device, int workers, std::int64_t prefetch)
      : spec(network_of(run)),
        loader(make_batch_source(small_dataset(12 * 20), run.data, batch_options(run, spec, 0, 1, true)),
               {.workers = workers, .prefetch = prefetch, .device = device}),
        network(spec, {.batch = loader.shape().samples,
                       .micro_batches = run.train.micro_batches,
                       .seed = 5,
                       .device = device,
                       .deterministic = true,
                       .cuda_graphs = run.train.cuda_graphs,
                       .branches = run.train.branches,
                       .pixels = pixel_options(run, loader.shape())}),
        optimizer(run.optimizer, network.tensors(), network.parameters().size(), network.stream()) {
    optimizer.set_rate(0.05);
  }
  std::vector<float> weights() {
    std::vector<float> out(network.parameters().size());
    copy_values(std::span(out), network.parameters(), network.stream());
    network.stream().synchronize();
    return out;
  }

  NetworkSpec spec;
  Loader loader;  // outlives the copies that the network has queued
  Network network;
  Optimizer optimizer;
};

}  // namespace lpsgd
