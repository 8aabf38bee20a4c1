// Convolutions by the loops of winograd.h.
#pragma once

#include <memory>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

/// Of a batch, below which direct convolution is faster.
constexpr std::int64_t winograd_min_tiles = 32;

/// Tiles of one image of outputs.
std::int64_t winograd_tiles(const Shape& image);

/// Whether Winograd's tiles fit a convolution: windows of 3x3 pixels, stride 1, float32, channels and filters
/// multiples of 16, and enough tiles that are mostly full. The limits are measured by `floor_bench --layers`.
bool suits_winograd(const Binding& b, const ConvDesc& desc);

/// oneDNN's own is faster than its direct convolution from so many channels on.
constexpr std::int64_t onednn_winograd_min_channels = 32;

/// Whether, of what suits, these loops are the fastest algorithm on this machine. Where oneDNN has Winograd's
/// algorithm itself (AVX-512), it takes 32 channels and more.
bool own_winograd_is_profitable(const Binding& b, const ConvDesc& desc);

std::unique_ptr<Op> make_winograd_conv(Context& context, const Binding& binding, const ConvDesc& desc);

}  // namespace lpsgd::cpu
