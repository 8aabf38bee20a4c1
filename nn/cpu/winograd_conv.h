// Convolutions by the loops of winograd.h.
#pragma once

#include <memory>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

/// Whether these loops are the fastest algorithm on this machine for a convolution: windows of 3x3 pixels,
/// stride 1, float32, channels and filters multiples of 16, and tiles that are mostly full. Where oneDNN has
/// Winograd's algorithm itself (AVX-512), it takes 32 channels and more.
bool own_winograd_is_profitable(const Binding& b, const ConvDesc& desc);

std::unique_ptr<Op> make_winograd_conv(Context& context, const Binding& binding, const ConvDesc& desc);

}  // namespace lpsgd::cpu
