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
      add_(backend.sum(DataType::f32, sum_.data(), {sum_.data(), gradients.data()}, nullptr,
                       static_cast<std::int64_t>(sum_.size()))) {}

void GradientAccumulation::add(bool first) {
  first ? copy_values(sum_, gradients_, backend_.stream()) : add_->backward();
}

GradientAccumulation::Mean GradientAccumulation::mean_of(const std::vector<TensorInfo>& tensors,
                                                         std::vector<std::size_t> numbers) const {
  // Tensors begin at multiples of 64 bytes, so the gap behind one is smaller than that, and holds zeros.
  constexpr std::int64_t gap = 64 / sizeof(float);
  std::ranges::sort(numbers, {}, [&](std::size_t t) { return tensors[t].offset; });
  Mean out;
  for (auto t = numbers.begin(); t != numbers.end();) {
    const std::int64_t begin = tensors[*t].offset;
    std::int64_t end = begin;
    for (; t != numbers.end() && tensors[*t].offset < end + gap; ++t)
      end = tensors[*t].offset + tensors[*t].elements;
    // The backward of a layer that scales its input.
    Binding b;
    b.shape = {end - begin};
    b.inputs = {{.shape = b.shape, .gradient = gradients_.data() + begin}};
    b.output_gradients = {sum_.data() + begin, gradients_.data() + begin};
    out.ranges_.push_back(backend_.scale(b, factor_));
  }
  return out;
}

}  // namespace lpsgd
