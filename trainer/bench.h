// What the benchmarks share.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/philox.h"

namespace lpsgd {

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

constexpr float most_like_gradients = 0.015f;

/// Bell-shaped values, as gradients are, of a pattern long enough that no cache or predictor learns it; none
/// is farther from 0 than most_like_gradients.
inline void fill_like_gradients(std::span<float> values, std::uint32_t stream) {
  const std::size_t pattern = std::min<std::size_t>(values.size(), std::size_t{1} << 20);
  PhiloxSequence random(1, RandomUse::dataset, stream);
  for (std::size_t i = 0; i < pattern; ++i)
    values[i] = (random.uniform() + random.uniform() + random.uniform() - 1.5f) * 0.01f;
  for (std::size_t at = pattern; at < values.size(); at += pattern)
    std::memcpy(values.data() + at, values.data(), std::min(pattern, values.size() - at) * sizeof(float));
}

}  // namespace lpsgd
