#include "nn/accumulation.h"

#include <algorithm>
#include <utility>

namespace lpsgd {

namespace {

std::span<float> arena_like(Backend& backend, std::span<const float> other) {
  return {static_cast<float*>(backend.allocate(static_cast<std::int64_t>(other.size_bytes()))), other.size()};
}

}  // namespace

GradientAccumulation::GradientAccumulation(Backend& backend, std::span<float> gradients,
                                           std::int64_t micro_batches)
    : backend_(backend),
      gradients_(gradients),
      sum_(arena_like(backend, gradients)),
      factor_(1.0 / static_cast<double>(micro_batches)),
      first_(scaled_sum(sum_, {gradients_}, 1)),
      add_(scaled_sum(sum_, {sum_, gradients_}, 1)) {}

/// The backward of a layer that scales its input.
std::unique_ptr<Op> GradientAccumulation::scaled_sum(std::span<float> into,
                                                     const std::vector<std::span<const float>>& terms,
                                                     double factor) const {
  Binding b;
  b.shape = {static_cast<std::int64_t>(into.size())};
  b.inputs = {{.shape = b.shape, .gradient = into.data()}};
  for (const std::span<const float> term : terms) b.output_gradients.push_back(term.data());
  return backend_.scale(b, factor);
}

GradientAccumulation::Mean GradientAccumulation::mean_of(std::vector<TensorInfo> tensors) const {
  // Tensors begin at multiples of 64 bytes, so the gap behind one is smaller than that, and holds zeros.
  constexpr std::int64_t gap = 64 / sizeof(float);
  std::ranges::sort(tensors, {}, &TensorInfo::offset);
  Mean out;
  for (std::size_t t = 0; t < tensors.size();) {
    const std::int64_t begin = tensors[t].offset;
    std::int64_t end = begin;
    for (; t < tensors.size() && tensors[t].offset < end + gap; ++t)
      end = tensors[t].offset + tensors[t].elements;
    const auto part = [&](std::span<float> arena) {
      return arena.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    };
    out.ranges_.push_back(scaled_sum(part(gradients_), {part(sum_), part(gradients_)}, factor_));
  }
  return out;
}

}  // namespace lpsgd
