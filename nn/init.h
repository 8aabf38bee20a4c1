// Initial weights. They are a function of the seed and the tensor's number, drawn in PyTorch's order of
// elements. So they do not depend on the number of ranks or on the layout.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_info.h"
#include "nn/layer.h"

namespace lpsgd {

/// Fills `values`, which are in memory order, with the initial weights of tensor number `index`. Normal
/// weights are computed by Box and Muller's method in double, each pair from two words of a Philox block. A
/// uniform weight takes one word.
void initialize(const TensorInfo& tensor, std::uint32_t index, std::uint32_t seed, Init init,
                std::span<float> values);

}  // namespace lpsgd
