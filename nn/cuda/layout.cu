// Matrices into their transposes: activations and filters from channels last to channels first and back.
//
// Memory moved per value of b bytes: 2 b. Each side is read or written 16 bytes at a time where the length of
// its rows is a multiple of that, in runs of 256 bytes and more; else in single values of neighbours. A block
// moves a tile of up to 4096 values through shared memory. A tile of a matrix with short rows holds whole
// rows, so that its threads do not idle: an image's 3 channels, a filter's 9 pixels.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int tile_values = 4096, tile_side = 64, longest_side = 1024;
constexpr int shared_values = longest_side * 5;  // the worst tile, 1024 x 4, with a column of padding

/// The base-2 logarithms of a tile's sides.
struct Tile {
  int a = 0, b = 0;
};

int ceil_log2(std::int64_t n, int limit) {
  int bits = 0;
  while ((std::int64_t{1} << bits) < n && (1 << bits) < limit) ++bits;
  return bits;
}

Tile tile_of(std::int64_t a, std::int64_t b) {
  Tile tile{ceil_log2(a, tile_side), ceil_log2(b, tile_side)};
  const auto beside = [](int bits) {  // the longest side beside one of so many bits
    const int side = tile_values >> bits;
    return side < longest_side ? side : longest_side;
  };
  if (1 << tile.b < tile_side)
    tile.a = ceil_log2(a, beside(tile.b));
  else if (1 << tile.a < tile_side)
    tile.b = ceil_log2(b, beside(tile.a));
  return tile;
}

/// Loads VB values of a row of (a, b) at once, and stores VA of a row of (b, a).
template <class T, int VA, int VB>
__global__ void transpose_kernel(const T* from, T* to, std::int64_t batch, std::int64_t a, std::int64_t b,
                                 Tile tile) {
  __shared__ float moved[shared_values];
  const int rows = 1 << tile.a, columns = 1 << tile.b, pitch = columns + 1;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t tiles_a = (a + rows - 1) >> tile.a, tiles_b = (b + columns - 1) >> tile.b;
  for (std::int64_t t = blockIdx.x; t < batch * tiles_a * tiles_b; t += gridDim.x) {
    const std::int64_t n = t / (tiles_a * tiles_b);
    const std::int64_t a0 = t / tiles_b % tiles_a << tile.a, b0 = t % tiles_b << tile.b;
    const T* source = from + n * a * b;
    T* target = to + n * a * b;
    for (int i = thread * VB; i < rows * columns; i += block_threads * VB) {
      const int r = i >> tile.b, c = i & (columns - 1);
      if (a0 + r >= a || b0 + c >= b) continue;
      float v[VB];
      load<VB>(source + (a0 + r) * b + b0 + c, v);
#pragma unroll
      for (int k = 0; k < VB; ++k) moved[r * pitch + c + k] = v[k];
    }
    __syncthreads();
    for (int i = thread * VA; i < rows * columns; i += block_threads * VA) {
      const int c = i >> tile.a, r = i & (rows - 1);
      if (a0 + r >= a || b0 + c >= b) continue;
      float v[VA];
#pragma unroll
      for (int k = 0; k < VA; ++k) v[k] = moved[(r + k) * pitch + c];
      store<VA>(target + (b0 + c) * a + a0 + r, v);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_transpose(DataType type, const void* from, void* to, std::int64_t batch, std::int64_t a,
                             std::int64_t b, cudaStream_t stream) {
  const Tile tile = tile_of(a, b);
  const std::int64_t tiles = batch * (((a - 1) >> tile.a) + 1) * (((b - 1) >> tile.b) + 1), most = 65536;
  const auto blocks = static_cast<unsigned>(tiles < most ? tiles : most);
  const auto is_aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return with_type(type, [&]<class T>(T) {
    const auto launch = [&]<int VA, int VB>() {
      LPSGD_LAUNCH((transpose_kernel<T, VA, VB>), blocks, block_threads, stream)
      (static_cast<const T*>(from), static_cast<T*>(to), batch, a, b, tile);
    };
    constexpr int pack = pack_of<T>;
    const bool packs_a = a % pack == 0 && is_aligned(to), packs_b = b % pack == 0 && is_aligned(from);
    if (packs_a && packs_b)
      launch.template operator()<pack, pack>();
    else if (packs_a)
      launch.template operator()<pack, 1>();
    else if (packs_b)
      launch.template operator()<1, pack>();
    else
      launch.template operator()<1, 1>();
  });
}

}  // namespace lpsgd::cuda
