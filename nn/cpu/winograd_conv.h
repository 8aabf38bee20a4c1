// Convolutions by the loops of winograd.h.
#pragma once

#include <memory>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

/// Whether Winograd's tiles are the fastest algorithm: windows of 3x3 pixels, stride 1, float32, channels and
/// filters multiples of 16, enough tiles that are mostly full, and a processor that has multiply-add. The
/// limits are from measurements of oneDNN's own on AVX-512, by `floor_bench --layers`.
bool winograd_is_profitable(const Binding& b, const ConvDesc& desc);

std::unique_ptr<Op> make_winograd_conv(Context& context, const Binding& binding, const ConvDesc& desc);

}  // namespace lpsgd::cpu
