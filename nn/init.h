// Initial weights: a function of (seed, tensor index) only, drawn in PyTorch's order of elements, so that
// neither rank count nor layout matters.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_info.h"
#include "nn/layer.h"

namespace lpsgd {

/// Fills `values` (memory order) with tensor number `index`'s initial weights. kaiming_normal_fan_out: normal
/// with deviation sqrt(2 / fan) (He et al. 2015), by Box and Muller in double from words 2j, 2j+1 of each
/// Philox block; uniform_fan_in: uniform in +-1/sqrt(fan), one word an element.
void initialize(const TensorInfo& tensor, std::uint32_t index, std::uint32_t seed, Init init,
                std::int64_t fan, std::span<float> values);

}  // namespace lpsgd
