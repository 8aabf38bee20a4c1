// Winograd's minimal filtering F(4x4, 3x3) for convolutions with windows of 3x3 pixels and stride 1 in
// float32 (Lavin and Gray, CVPR 2016, section 4.1): a tile of 4x4 outputs takes 36 multiplications for each
// pair of channels instead of 144.
//
// A tile is transformed into 36 points. For each point a matrix product goes over the channels:
//   output          Y  = A^T [ U o (B^T d B) ] A      with U = G g G^T
//   weight gradient dg = G^T [ sum over tiles of (B^T d B) o (A dY A^T) ] G
// d is a tile's 6x6 inputs, g the 3x3 weights of a pair of channels. The gradient of the input is the
// convolution of the output's gradient with the turned weights.
//
// Images are NHWC, channels and filters multiples of 16, weights (filters, 3, 3, channels).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lpsgd::cpu::winograd {

constexpr std::int64_t tile = 4;          // outputs, in each direction
constexpr std::int64_t points = 36;       // of a tile
constexpr std::int64_t block_tiles = 12;  // that product() takes at once
constexpr std::int64_t channel_block = 16;

/// The tiles of a batch of images, in row-major order, one image after the other.
struct Tiles {
  std::int64_t height = 0, width = 0;  // of the image that is read or written, in pixels
  std::int64_t channels = 0;
  std::int64_t down = 0, across = 0;  // tiles of an image
  std::int64_t above = 0, left = 0;   // pixels by which the first tile begins outside of the image
};

/// The loops, compiled once for each instruction set that has multiply-add, with the same results.
struct Kernels {
  const char* name;
  /// Tiles that add_product() had best take at once: more need fewer passes over the sums, and more cache.
  std::int64_t gradient_tiles;
  /// v[point * stride + t * channels + c] = B^T d B of the tiles first .. first + count.
  void (*transform_input)(const float* x, const Tiles& tiles, std::int64_t first, std::int64_t count,
                          float* v, std::int64_t stride);
  /// As transform_input(), of A dY A^T.
  void (*transform_gradient)(const float* dy, const Tiles& tiles, std::int64_t first, std::int64_t count,
                             float* z, std::int64_t stride);
  /// Writes the images from sums m, laid out as by transform_input(): A^T m A [+ bias] [then ReLU]. `bias`
  /// may be null.
  void (*transform_output)(const float* m, std::int64_t stride, const Tiles& tiles, std::int64_t first,
                           std::int64_t count, const float* bias, bool relu, float* y);
  /// m (block_tiles, out) = v (block_tiles, in) u (in, out).
  void (*product)(const float* v, const float* u, float* m, std::int64_t in, std::int64_t out);
  /// s (in, out) += v^T z, with v (count, in) and z (count, out).
  void (*add_product)(const float* v, const float* z, std::int64_t count, float* s, std::int64_t in,
                      std::int64_t out);
  /// u (36, channels, filters) from the weights of the filters first .. last, multiples of 16.
  void (*transform_weights)(const float* w, std::int64_t filters, std::int64_t channels, std::int64_t first,
                            std::int64_t last, float* u);
  /// u (36, filters, channels) from the turned weights.
  void (*transform_turned_weights)(const float* w, std::int64_t filters, std::int64_t channels,
                                   std::int64_t first, std::int64_t last, float* u);
  /// dw of the filters first .. last from the sums s (36, channels, filters): G^T s G.
  void (*transform_weight_gradient)(const float* s, std::int64_t filters, std::int64_t channels,
                                    std::int64_t first, std::int64_t last, float* dw);
};

/// The variants that this machine can run, those with the widest instructions first. None without
/// multiply-add.
std::span<const Kernels* const> usable_kernels();

}  // namespace lpsgd::cpu::winograd
