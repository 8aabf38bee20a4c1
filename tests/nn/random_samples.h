// Random inputs and labels for a network whose samples have one label each.
#pragma once

#include <cstdint>
#include <vector>

#include "core/philox.h"
#include "nn/network_spec.h"

namespace lpsgd {

inline void draw_samples(const NetworkSpec& spec, std::int64_t batch, std::vector<float>& inputs,
                         std::vector<std::int32_t>& labels) {
  auto n = static_cast<std::size_t>(batch);
  for (const std::int64_t d : spec.input_shape()) n *= static_cast<std::size_t>(d);
  PhiloxSequence draw(3, RandomUse::dataset, 1);
  inputs.resize(n);
  for (float& x : inputs) x = 2 * draw.uniform() - 1;
  for (std::int64_t i = 0; i < batch; ++i)
    labels.push_back(static_cast<std::int32_t>(draw.below(static_cast<std::uint32_t>(spec.classes()))));
}

}  // namespace lpsgd
