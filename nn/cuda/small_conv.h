// Our own kernels for 3x3 convolutions of few channels in bfloat16, where the libraries' are far from the
// memory's speed: pad 1, stride 1 or 2, one group, 16, 32, 48 or 64 channels in and out. Inputs of fewer
// than 16 channels are computed as if they had 16. NHWC. Products by the matrix instructions of compute
// capability 8.0, sums in float32. All add in a fixed order, which depends on the shape alone. Only plain
// types are used, for nvcc and the host's compiler.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/data_type.h"
#include "nn/cuda/kernels.h"

namespace lpsgd::cuda {

/// Quotients of small numbers: exact for 0 <= n < 1024 and 1 <= d < 1024.
struct SmallDivisor {
  std::uint32_t reciprocal = 0;  // 2^20 / d, rounded up
};

/// What a launch reads around each pixel that it computes, and how the pixels are divided into tiles. `in`
/// is what a 3x3 window slides over: x, or for the gradient of the input dy. `out` is what it computes: y or
/// dx. For the gradient of the weights in is x and out is dy, which is read.
struct SmallConvShape {
  std::int64_t batch = 1;
  int in_h = 1, in_w = 1, in_channels = 16;
  /// Those that `in` and the weights have in memory: in_channels, or fewer if that is 16. The missing ones
  /// count as zeros.
  int stored_channels = 16;
  int out_h = 1, out_w = 1, out_channels = 16;
  int step = 1;    // pixels of `in` between windows
  int spread = 1;  // 2: windows slide over `in` with zeros between its pixels (the transpose of step 2)

  // A tile: of so many images, which are whole ones if there are several.
  int images = 1, tile_h = 1, tile_w = 1;
  int halo_h = 1, halo_w = 1;  // of the part of `in` that its windows cover
  int tiles_y = 1, tiles_x = 1;
  int tiles = 1;  // in all
  SmallDivisor by_tile_w, by_tile_h, by_halo_w, by_halo_h;

  int pixels() const { return images * tile_h * tile_w; }
  int halo_pixels() const { return images * halo_h * halo_w; }
};

struct SmallConv {
  SmallConvShape shape;
  bool transposed = false;  // the gradient of the input
  int blocks = 1, threads = 32;
  int buffers = 1;  // tiles in shared memory; 2: one is loaded while the one before is computed
  int shared = 0;   // bytes
};

/// A batch norm whose output the convolution reads: its own input x, as large as the output, and its
/// constants in this pass, one for each channel (NormState). Its output is relu((x - mean) * scale + bias).
struct NormInput {
  const Bf16* x = nullptr;  // null: there is none
  const float *mean = nullptr, *scale = nullptr, *bias = nullptr;
  bool relu = false;
};

/// out = the convolution of `in`. `weights` (filters, 3, 3, channels). `bias` may be null; it and the ReLU
/// are applied in float32. Neither is for `transposed`.
struct SmallConvMemory {
  const Bf16 *in = nullptr, *weights = nullptr;
  const float* bias = nullptr;
  bool relu = false;
  Bf16* out = nullptr;
  /// If there is one, `in` is not read: each value is computed from the norm's x as it is loaded, with the
  /// bits that launch_normalize() would write. Not for `transposed`, or fewer than 16 channels.
  NormInput norm = {};
};
cudaError_t launch_small_conv(const SmallConv& conv, const SmallConvMemory& memory, cudaStream_t stream);
/// The same, not `transposed`, and what launch_norm_statistics() does with `out`. state.partials holds
/// small_conv_norm_partials(), and state.finished one counter.
cudaError_t launch_small_conv(const SmallConv& conv, const SmallConvMemory& memory, const NormState& state,
                              cudaStream_t stream);
/// `transposed`, and what launch_norm_gradient_sums() does with `out`, the only gradient of the output of
/// `norm`. state.partials and state.finished as above.
cudaError_t launch_small_conv(const SmallConv& conv, const SmallConvMemory& memory, const NormInput& norm,
                              const NormState& state, cudaStream_t stream);
/// Moments of each channel, and a count, of each block; or two sums of each channel.
constexpr std::int64_t small_conv_norm_partials(const SmallConv& conv) {
  return std::int64_t{conv.blocks} * (conv.shape.out_channels + 1);
}

/// The gradient of the weights, (filters, 3, 3, channels) in float32. `conv.blocks` is the number of parts.
struct SmallConvGradient {
  const Bf16 *in = nullptr, *out_gradient = nullptr;
  float* partials = nullptr;  // small_conv_partials()
  float* gradient = nullptr;
  NormInput norm = {};  // as in SmallConvMemory
};
cudaError_t launch_small_conv_gradient(const SmallConv& conv, const SmallConvGradient& memory,
                                       cudaStream_t stream);
constexpr int small_conv_unit = 9 * 16 * 16;  // values of 16 filters and 16 channels
constexpr std::int64_t small_conv_partials(const SmallConv& conv) {
  return std::int64_t{conv.blocks} * (conv.shape.in_channels / 16) * (conv.shape.out_channels / 16) *
         small_conv_unit;
}

}  // namespace lpsgd::cuda
