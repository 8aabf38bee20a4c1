// How the kernels of small convolutions find their pixels: tiles of what they compute, and the tiles with
// their borders (halos) in shared memory.
#pragma once

#include "nn/cuda/access_device.h"
#include "nn/cuda/matrix_device.h"
#include "nn/cuda/norm_device.h"
#include "nn/cuda/small_conv.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {

constexpr int small_conv_taps = 9;
/// Bytes between pixels of `channels` in shared memory: eight pixels side by side begin in different banks.
__host__ __device__ constexpr int pixel_pitch(int channels) {
  return 2 * channels + 16;
}

__device__ __forceinline__ int quotient(int n, SmallDivisor by) {
  return static_cast<int>((static_cast<std::uint32_t>(n) * by.reciprocal) >> 20);
}

/// The first pixel of a tile.
struct TileOrigin {
  std::int64_t image;
  int y, x;
  __device__ TileOrigin(const SmallConvShape& s, int tile)
      : image(static_cast<std::int64_t>(tile / s.tiles_x / s.tiles_y) * s.images),
        y(tile / s.tiles_x % s.tiles_y * s.tile_h),
        x(tile % s.tiles_x * s.tile_w) {}
};

/// A pixel of a tile.
struct TilePixel {
  int image, y, x;
  __device__ TilePixel(const SmallConvShape& s, int number) {
    const int row = quotient(number, s.by_tile_w);
    x = number - row * s.tile_w;
    image = quotient(row, s.by_tile_h);
    y = row - image * s.tile_h;
  }
  /// The top left pixel of its window, in the halo.
  __device__ int window(const SmallConvShape& s) const {
    return (image * s.halo_h + y * s.step) * s.halo_w + x * s.step;
  }
  __device__ bool exists(const SmallConvShape& s, const TileOrigin& o) const {
    return o.image + image < s.batch && o.y + y < s.out_h && o.x + x < s.out_w;
  }
  __device__ std::int64_t position(const SmallConvShape& s, const TileOrigin& o) const {
    return ((o.image + image) * s.out_h + o.y + y) * s.out_w + o.x + x;
  }
};

/// A pixel of a tile's halo: whether the image has it, and which it is.
struct HaloPixel {
  bool inside;
  std::int64_t at;
  __device__ HaloPixel(const SmallConvShape& s, const TileOrigin& o, int pixel) {
    const int row = quotient(pixel, s.by_halo_w), image = quotient(row, s.by_halo_h);
    int y = o.y * s.step - 1 + row - image * s.halo_h;
    int x = o.x * s.step - 1 + pixel - row * s.halo_w;
    inside = y >= 0 && x >= 0 && o.image + image < s.batch;
    if (s.spread == 2) {
      inside = inside && y % 2 == 0 && x % 2 == 0;
      y /= 2;
      x /= 2;
    }
    inside = inside && y < s.in_h && x < s.in_w;
    at = ((o.image + image) * s.in_h + y) * s.in_w + x;
  }
};

/// Calls body(pack, pixel, to) for this thread's packs of 8 values of a tile's halo, of `channels` to a
/// pixel. `to`: where the pack lies in shared memory.
template <int channels, class Body>
__device__ __forceinline__ void over_halo(const SmallConvShape& s, int tile, unsigned char* to,
                                          const Body& body) {
  constexpr int packs = channels / 8;
  const TileOrigin o(s, tile);
  const int count = s.images * s.halo_h * s.halo_w * packs;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int pixel = i / packs, pack = i % packs;
    body(pack, HaloPixel(s, o, pixel), to + pixel * pixel_pitch(channels) + 16 * pack);
  }
}

/// Eight of 16 values of which the first `stored` are in memory, and the others are zero: those of a pixel,
/// or of a filter in one place of its window. `pack`: 0 or 1.
__device__ __forceinline__ uint4 load_padded(const Bf16* in, int stored, int pack) {
  std::uint32_t words[4] = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int c = 8 * pack + k;
    if (c < stored) words[k / 2] |= static_cast<std::uint32_t>(in[c].bits) << k % 2 * 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Of this thread's numbers below `count`, some at once: load(i) of all, so that the loads are on their way
/// together, and then store(i, what it returned).
template <int at_once, class Load, class Store>
__device__ __forceinline__ void over_padded_packs(int count, const Load& load, const Store& store) {
  const int step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += at_once * step) {
    uint4 packs[at_once];
#pragma unroll
    for (int u = 0; u < at_once; ++u)
      if (first + u * step < count) packs[u] = load(first + u * step);
#pragma unroll
    for (int u = 0; u < at_once; ++u)
      if (first + u * step < count) store(first + u * step, packs[u]);
  }
}

/// Starts to copy the halo of a tile: of each pixel `channels` values from `first` on. Where there is no
/// pixel, zeros. `padded_packs`: 0, or there may be fewer stored channels, which are loaded
/// now, so many packs at once.
template <int channels, int padded_packs>
__device__ __forceinline__ void fetch_halo(const SmallConvShape& s, int tile, const Bf16* in, int first,
                                           unsigned char* to) {
  if constexpr (padded_packs > 0 && channels == 16) {
    if (s.stored_channels < 16) {
      const TileOrigin o(s, tile);
      over_padded_packs<padded_packs>(
          2 * s.images * s.halo_h * s.halo_w,
          [&](int i) {
            const HaloPixel pixel(s, o, i / 2);
            return pixel.inside ? load_padded(in + pixel.at * s.stored_channels, s.stored_channels, i % 2)
                                : make_uint4(0, 0, 0, 0);
          },
          [&](int i, const uint4& pack) {
            *reinterpret_cast<uint4*>(to + i / 2 * pixel_pitch(channels) + 16 * (i % 2)) = pack;
          });
      return;
    }
  }
  over_halo<channels>(s, tile, to, [&](int pack, const HaloPixel& pixel, unsigned char* there) {
    copy_async(there, pixel.inside ? in + pixel.at * s.in_channels + first + 8 * pack : in, !pixel.inside);
  });
}

/// Normalises what fetch_halo() copied, when the thread's own copies are done. Each thread has the packs that
/// it copied itself. The zeros around the image stay: padding lies behind the norm.
template <int channels>
__device__ __forceinline__ void normalize_halo(const SmallConvShape& s, int tile, const NormInput& norm,
                                               int first, unsigned char* to) {
  over_halo<channels>(s, tile, to, [&](int pack, const HaloPixel& pixel, unsigned char* there) {
    if (!pixel.inside) return;
    auto* const values = reinterpret_cast<Bf16*>(there);
    const NormConstants<8> k(norm, first + 8 * pack);
    float v[8];
    load<8>(values, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = k.normalized(v[i], i);
      if (norm.relu) v[i] = maths::relu(v[i]);
    }
    store<8>(values, v);
  });
}

/// Allows a kernel `bytes` of shared memory.
template <class Kernel>
cudaError_t allow_shared(Kernel* kernel, int bytes) {
  if (bytes <= 48 << 10) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace lpsgd::cuda
