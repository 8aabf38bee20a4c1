// The gradient of the weights of 3x3 convolutions of few channels: a matrix product of filters by channels
// over all pixels, for each of the 9 places in the window:
//
//   dw[k, r, s, c] = sum over the pixels of dy[pixel, k] * x[pixel + (r, s) - 1, c]
//
// A block computes 16 filters by 16 channels in all places, over one part of the tiles. Its warps take 16
// pixels at a time. They add their sums up in shared memory, the block writes them to memory, and a second
// launch adds the parts in a fixed order and writes float32.
//
// Memory moved per value in bytes: 2 for each of x and again for those on the border of a tile, as often as
// there are 16 filters; 2 for each of dy, as often as there are 16 channels; 4 for each weight and part,
// written and read; 4 for each weight. Of fewer than 16 channels x is read two bytes at a time.
#include "nn/cuda/small_conv_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int side = 16;                         // filters and channels of a block
constexpr int fragments = 2 * small_conv_taps;   // of a warp: of 16 filters by 8 channels
constexpr int warp_values = fragments * 32 * 4;  // all sums of a warp
static_assert(warp_values == small_conv_unit);

/// Starts to copy a tile's pixels of dy. Zeros behind the last one, up to a multiple of 16, and where there
/// is none.
__device__ __forceinline__ void fetch_pixels(const SmallConvShape& s, int tile, const Bf16* dy, int first,
                                             unsigned char* to) {
  constexpr int packs = side / 8;
  const TileOrigin o(s, tile);
  const int pixels = s.images * s.tile_h * s.tile_w, count = (pixels + 15) / 16 * 16 * packs;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int number = i / packs, pack = i % packs;
    const TilePixel pixel(s, number);
    const bool exists = number < pixels && pixel.exists(s, o);
    copy_async(to + number * pixel_pitch(side) + 16 * pack,
               exists ? dy + pixel.position(s, o) * s.out_channels + first + 8 * pack : dy, !exists);
  }
}

__global__ void __launch_bounds__(block_threads, 2)
    small_conv_gradient_kernel(SmallConvShape s, SmallConvGradient m) {
  if constexpr (has_matrices) {
    LPSGD_LAUNCHED_SHARED(memory);
    const int channel_units = s.in_channels / side, unit = static_cast<int>(blockIdx.x);
    const int filter = unit / channel_units * side, channel = unit % channel_units * side;
    const int pixels = s.images * s.tile_h * s.tile_w, chunks = (pixels + 15) / 16;
    const int halo_bytes = s.images * s.halo_h * s.halo_w * pixel_pitch(side);
    const int buffer_bytes = halo_bytes + 16 * chunks * pixel_pitch(side);
    const bool normalizes = m.norm.x != nullptr;
    const auto fetch = [&](int tile, unsigned char* to) {
      fetch_halo<side, 2>(s, tile, normalizes ? m.norm.x : m.in, channel, to);
      fetch_pixels(s, tile, m.out_gradient, filter, to + halo_bytes);
      commit_copies();
    };
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int warps = static_cast<int>(blockDim.x) / 32, parts = static_cast<int>(gridDim.y);
    const int low = lane % 8, second = lane / 8 % 2, third = lane / 16;
    float sum[fragments][4] = {};

    int tile = static_cast<int>(blockIdx.y), buffer = 0;
    fetch(tile, memory);
    for (; tile < s.tiles; tile += parts) {
      if (tile + parts < s.tiles)
        fetch(tile + parts, memory + (1 - buffer) * buffer_bytes);
      else
        commit_copies();
      wait_for_copies<1>();
      if (normalizes) normalize_halo<side>(s, tile, m.norm, channel, memory + buffer * buffer_bytes);
      __syncthreads();
      const SharedAddress halo = shared_address(memory + buffer * buffer_bytes);
      for (int chunk = warp; chunk < chunks; chunk += warps) {
        std::uint32_t a[4];  // dy transposed: of 16 filters by 16 pixels
        load_matrices<true>(
            halo + halo_bytes + (16 * chunk + low + 8 * third) * pixel_pitch(side) + 16 * second, a);
        // Behind the last pixel dy is zero. There the window of the last one is read.
        const int number = 16 * chunk + low + 8 * second;
        const TilePixel pixel(s, number < pixels ? number : pixels - 1);
        const SharedAddress window = halo + pixel.window(s) * pixel_pitch(side) + 16 * third;
#pragma unroll
        for (int tap = 0; tap < small_conv_taps; ++tap) {
          std::uint32_t b[4];  // of 16 pixels by 16 channels
          load_matrices<true>(window + (tap / 3 * s.halo_w + tap % 3) * pixel_pitch(side), b);
          multiply_add(sum[2 * tap], a, b[0], b[1]);
          multiply_add(sum[2 * tap + 1], a, b[2], b[3]);
        }
      }
      __syncthreads();  // before the buffer is filled again
      buffer = 1 - buffer;
    }
    wait_for_copies<0>();

    // The upper half of the warps hands its sums to the lower half, until one has them all.
    float4* const shared = reinterpret_cast<float4*>(memory);
    for (int half = warps / 2; half > 0; half /= 2) {
      if (warp >= half && warp < 2 * half)
#pragma unroll
        for (int f = 0; f < fragments; ++f)
          shared[((warp - half) * fragments + f) * 32 + lane] =
              make_float4(sum[f][0], sum[f][1], sum[f][2], sum[f][3]);
      __syncthreads();
      if (warp < half)
#pragma unroll
        for (int f = 0; f < fragments; ++f) {
          const float4 more = shared[(warp * fragments + f) * 32 + lane];
          sum[f][0] += more.x, sum[f][1] += more.y, sum[f][2] += more.z, sum[f][3] += more.w;
        }
      __syncthreads();
    }
    if (warp != 0) return;
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * static_cast<int>(gridDim.x) + unit;
    float4* const out = reinterpret_cast<float4*>(m.partials + at * warp_values);
#pragma unroll
    for (int f = 0; f < fragments; ++f)
      out[f * 32 + lane] = make_float4(sum[f][0], sum[f][1], sum[f][2], sum[f][3]);
  }
}

constexpr int join_width = 16, join_height = 16;  // four sums at a time, and parts at a time

/// Adds the parts, four values of a fragment at a time. `stored`: channels that the weights have.
__global__ void __launch_bounds__(join_width* join_height)
    small_conv_join_kernel(SmallConvGradient m, int parts, int units, int channels, int stored) {
  __shared__ float4 shared[join_height][join_width];
  const int x = static_cast<int>(threadIdx.x) % join_width, y = static_cast<int>(threadIdx.x) / join_width;
  const int fours = units * (warp_values / 4), four = static_cast<int>(blockIdx.x) * join_width + x;
  const float4* const from = reinterpret_cast<const float4*>(m.partials);
  float4 total = make_float4(0, 0, 0, 0);
  const auto add = [&](const float4& v) { total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w; };
#pragma unroll 4
  for (int p = y; p < parts; p += join_height) add(from[static_cast<std::int64_t>(p) * fours + four]);
  shared[y][x] = total;
  __syncthreads();
  if (y != 0) return;
  for (int p = 1; p < join_height; ++p) add(shared[p][x]);
  const int unit = four / (warp_values / 4), fragment = four / 32 % fragments, lane = four % 32;
  const int filter = unit / (channels / side) * side + lane / 4;
  const int channel = unit % (channels / side) * side + fragment % 2 * 8 + lane % 4 * 2;
  float* const to =
      m.gradient + (static_cast<std::int64_t>(filter) * small_conv_taps + fragment / 2) * stored + channel;
  float* const below = to + std::int64_t{8} * small_conv_taps * stored;
  if (channel < stored) to[0] = total.x, below[0] = total.z;
  if (channel + 1 < stored) to[1] = total.y, below[1] = total.w;
}

}  // namespace

cudaError_t launch_small_conv_gradient(const SmallConv& conv, const SmallConvGradient& memory,
                                       cudaStream_t stream) {
  const SmallConvShape& s = conv.shape;
  const int units = s.in_channels / side * (s.out_channels / side);
  const cudaError_t status = allow_shared(small_conv_gradient_kernel, conv.shared);
  if (status != cudaSuccess) return status;
  LPSGD_LAUNCH_SHARED(small_conv_gradient_kernel,
                      dim3(static_cast<unsigned>(units), static_cast<unsigned>(conv.blocks)),
                      static_cast<unsigned>(conv.threads), static_cast<unsigned>(conv.shared), stream)
  (s, memory);
  static_assert(warp_values / 4 % join_width == 0);
  LPSGD_LAUNCH(small_conv_join_kernel, static_cast<unsigned>(units * (warp_values / 4 / join_width)),
               join_width * join_height, stream)
  (memory, conv.blocks, units, s.in_channels, s.stored_channels);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
