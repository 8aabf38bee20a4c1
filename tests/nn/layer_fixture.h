// A small network on random data, for tests of its layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/network.h"

namespace lpsgd {

struct LayerFixture {
  /// `text` is a network file, whose last layer gives the class scores. Inputs and labels are drawn for
  /// `batch` samples.
  LayerFixture(const std::string& text, std::int64_t batch, std::uint32_t seed = 5, int threads = 1);
  /// Runs forward in training. Returns the mean loss.
  double loss();
  Samples samples() const {
    return {.inputs = inputs,
            .labels = labels,
            .lengths = lengths,
            .continues = continues,
            .loss_divisor = loss_divisor};
  }

  NetworkSpec spec;
  Network network;
  std::int64_t batch;
  std::vector<float> inputs;
  std::vector<std::int32_t> labels, lengths, continues;
  double loss_divisor = 0;
};

}  // namespace lpsgd
