// What the benchmarks share: the values that they code, and the median of their times.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/philox.h"
#include "core/tensor_info.h"

namespace lpsgd {

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/// The tensor that is coded or exchanged: a vector of n values.
inline TensorInfo bench_tensor(std::int64_t n) {
  return {"bench", TensorKind::bias, {n}, n, 0};
}

inline constexpr float max_like_gradients = 0.015f;

/// Bell-shaped values in +-max_like_gradients, as gradients are. They repeat only after 2^20 values, so that
/// neither caches nor branch predictors benefit.
inline void fill_like_gradients(std::span<float> values, std::uint32_t stream) {
  const std::size_t pattern = std::min<std::size_t>(values.size(), std::size_t{1} << 20);
  PhiloxSequence random(1, RandomUse::dataset, stream);
  for (std::size_t i = 0; i < pattern; ++i)
    values[i] = (random.uniform() + random.uniform() + random.uniform() - 1.5f) * 0.01f;
  for (std::size_t at = pattern; at < values.size(); at += pattern)
    std::memcpy(values.data() + at, values.data(), std::min(pattern, values.size() - at) * sizeof(float));
}

}  // namespace lpsgd
