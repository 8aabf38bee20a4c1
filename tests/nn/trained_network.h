// Networks that are trained for a few steps on a GPU or on the CPU, to be compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nn/network.h"
#include "nn/optimizer.h"
#include "tests/nn/frozen_network.h"
#include "tests/nn/random_samples.h"

namespace lpsgd {

/// A copy of the device's memory on the host.
inline std::vector<float> on_host(std::span<const float> values, StreamView stream) {
  std::vector<float> out(values.size());
  copy_values(std::span(out), values, stream);
  stream.synchronize();
  return out;
}

inline double distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

/// Norms that one convolution reads, which our own kernels compute in bfloat16.
inline const std::string joinable =
    "input: [9, 10, 6]\nclasses: 5\nlayers:\n"
    "  - {conv: c0, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n0}\n  - {relu: r0}\n"
    "  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n1}\n"
    "  - {conv: c2, filters: 32, kernel: 3, stride: 2, pad: 1}\n  - {tanh: t2}\n"
    "  - average_pool\n  - flatten\n  - {dense: f, units: 5}\n";

/// A network, its data, and steps of training.
struct Trained {
  Trained(const std::string& text, const NetworkOptions& options, const OptimizerOptions& sgd = {},
          const std::vector<std::string>& frozen = {})
      : spec(frozen_spec(text, frozen)),
        micro_batches(options.micro_batches),
        network(spec, options),
        optimizer(sgd, spec.tensors(), network.parameters().size(), network.stream()) {
    optimizer.set_rate(0.05);
    draw_samples(spec, micro_batches * options.batch, inputs, labels);
  }
  void step(std::int64_t number, bool announces = false) {
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      network.forward_train({.inputs = part(inputs, m),
                             .labels = part(labels, m),
                             .lengths = part(lengths, m),
                             .continues = part(continues, m),
                             .loss_divisor = loss_divisor,
                             .micro_batch = m},
                            number);
      if (announces)
        network.backward([&](std::size_t t) { announced.push_back(t); });
      else
        network.backward({});
    }
    optimizer.step(network.parameters(), network.gradients());
  }
  std::vector<float> gradients() { return on_host(network.gradients(), network.stream()); }
  std::vector<float> weights() { return on_host(network.parameters(), network.stream()); }

  template <class V>
  std::span<const V> part(const std::vector<V>& of, std::int64_t micro_batch) const {
    const std::size_t size = of.size() / static_cast<std::size_t>(micro_batches);
    return std::span(of).subspan(static_cast<std::size_t>(micro_batch) * size, size);
  }

  NetworkSpec spec;
  const std::int64_t micro_batches;
  Network network;
  Optimizer optimizer;
  std::vector<float> inputs;
  std::vector<std::int32_t> labels, lengths, continues;
  double loss_divisor = 0;
  std::vector<std::size_t> announced;
};

}  // namespace lpsgd
