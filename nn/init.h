// Initial weights: a function of (seed, tensor index) only, drawn in PyTorch's order of elements, so that
// neither rank count nor layout matters.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_info.h"
#include "nn/layer.h"

namespace lpsgd {

/// Fills `values` (memory order) with tensor number `index`'s initial weights. Normal ones by Box and Muller
/// in double from words 2j, 2j+1 of each Philox block; uniform ones take one word an element.
void initialize(const TensorInfo& tensor, std::uint32_t index, std::uint32_t seed, Init init,
                std::span<float> values);

}  // namespace lpsgd
