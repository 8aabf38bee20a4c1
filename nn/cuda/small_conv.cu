// 3x3 convolutions of few channels: forward, and the gradient of the input, which is a convolution of dy with
// the weights turned round. The matrix product of pixels by filters over 9 windows' places and all channels:
//
//   out[pixel, k] = sum over r, s, c of in[pixel + (r, s) - 1, c] * w[k, r, s, c]
//   dx[pixel, c]  = sum over r, s, k of dy[pixel + (r, s) - 1, k] * w[k, 2 - r, 2 - s, c]
//
// A block has the weights in shared memory and goes through tiles of pixels: each tile's values with their
// border are copied there, 16 bytes at a time, while the tile before is computed. A warp computes 32 pixels
// by 8 NT filters. Where a warp's weights fit, it keeps them in registers.
//
// Memory moved per value in bytes: 2 for each of `in`, and again for those on the border of a tile (of 8 x
// 32 pixels 1.33 times in all); 2 for each of `out`; the weights once for each block. The gradient of the
// input of stride 2 computes four products for each that counts. Inputs of fewer than 16 channels are read
// two bytes at a time, before the tile at hand is computed. For the statistics of a batch norm 16 for each
// channel and block, written and read. For the sums of a batch norm's backward as many, and 2 for each value
// of the norm's x. Where the norm's output is computed as it is loaded, x is read in place of it.
#include "nn/cuda/small_conv_device.h"
#include "nn/cuda/small_conv_moments_device.h"
#include "nn/cuda/small_conv_sums_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int pixel_rows = 2;  // of 16 pixels, that a warp computes at once

enum class Kind { forward, with_statistics, transposed, transposed_with_sums };

/// C: channels of `in`. NT: groups of 8 output channels of a warp.
template <int C, int NT, Kind kind>
class SmallConvWarp {
 public:
  static constexpr bool sums = kind == Kind::transposed_with_sums;
  static constexpr bool transposed = kind == Kind::transposed || sums;
  static constexpr int pairs = NT / 2, steps = C / 16;
  static constexpr bool keeps_weights = C * NT <= 32;  // 36 registers

  __device__ SmallConvWarp(const SmallConvShape& s, const SmallConvMemory& m, SharedAddress weights)
      : s_(s), m_(m), lane_(static_cast<int>(threadIdx.x) % 32) {
    const int warp = static_cast<int>(threadIdx.x) / 32, across = s.out_channels / (8 * NT);
    first_ = warp % across * (8 * NT);
    row_ = warp / across;
    rows_ = static_cast<int>(blockDim.x) / 32 / across;
    const int low = lane_ % 8, second = lane_ / 8 % 2, third = lane_ / 16;
    pitch_ = weight_pitch(transposed ? s.out_channels : C);
    weights_ = transposed ? weights + (low + 8 * second) * pitch_ + 2 * (first_ + 8 * third)
                          : weights + (first_ + low + 8 * third) * pitch_ + 16 * second;
  }
  /// Bytes of a filter's weights in shared memory: eight filters begin in different banks.
  __host__ __device__ static constexpr int weight_pitch(int channels) {
    return small_conv_taps * 2 * channels + 16;
  }

  __device__ void keep_weights() {
    if constexpr (keeps_weights) {
#pragma unroll
      for (int tap = 0; tap < small_conv_taps; ++tap)
#pragma unroll
        for (int step = 0; step < steps; ++step)
#pragma unroll
          for (int pair = 0; pair < pairs; ++pair) load_weights(tap, step, pair, kept_[tap][step][pair]);
    }
  }

  __device__ void compute(int tile, SharedAddress halo) {
    const TileOrigin origin(s_, tile);
    const int pixels = s_.images * s_.tile_h * s_.tile_w;
    if constexpr (kind == Kind::with_statistics) moments_.begin_tile();
    if constexpr (sums) sums_.begin_tile();
    for (int first = 16 * pixel_rows * row_; first < pixels; first += 16 * pixel_rows * rows_) {
      uint4 x[pixel_rows][sums ? rounds : 1];
      // On its way while the product is computed, as far as there are registers.
      constexpr bool early = C * NT < 192;
      if constexpr (early) load_norm_input(origin, first, pixels, x[0]);
      float sum[pixel_rows][NT][4] = {};
      multiply(first, pixels, halo, sum);
      if constexpr (!early) load_norm_input(origin, first, pixels, x[0]);
#pragma unroll
      for (int i = 0; i < pixel_rows; ++i) {
        if (i + 1 < pixel_rows) load_norm_input(origin, first + 16 * (i + 1), pixels, x[i + 1]);
        store(origin, first + 16 * i, pixels, sum[i], x[i]);
      }
    }
    if constexpr (kind == Kind::with_statistics) moments_.end_tile();
    if constexpr (sums) sums_.end_tile();
  }

  /// Writes the statistics of all blocks. `memory` is the block's shared memory.
  __device__ void finish_statistics(const NormState& state, unsigned char* memory) const {
    const int channels = s_.out_channels, c = static_cast<int>(threadIdx.x) % channels;
    const int thread = static_cast<int>(threadIdx.x);
    // Of the warps that took the same channels of other pixels. Then sums of threads.
    double2* const moments = reinterpret_cast<double2*>(memory);
    double* const counts = reinterpret_cast<double*>(moments + rows_ * channels);
    __shared__ double sums[block_threads];
    moments[row_ * channels + first_ + moments_.channel()] = moments_.moments();
    if (lane_ == 0) counts[row_] = moments_.count();
    __syncthreads();
    double rows = 0;
    for (int r = 0; r < rows_; ++r) rows += counts[r];
    const double2 here = combine_moments(
        rows_, channels, rows, sums, [&](int r, int k) { return moments[r * channels + k]; },
        [&](int r) { return counts[r]; });
    const int part = static_cast<int>(blockIdx.y), parts = static_cast<int>(gridDim.y);
    double* const all_counts = reinterpret_cast<double*>(state.partials + parts * channels);
    if (thread < channels) state.partials[part * channels + c] = here;
    if (thread == 0) all_counts[part] = rows;
    if (!is_last(state.finished)) return;
    const double all_rows = output_pixels();
    const double2 all = combine_moments(
        parts, channels, all_rows, sums, [&](int p, int k) { return state.partials[p * channels + k]; },
        [&](int p) { return all_counts[p]; });
    if (thread < channels) set_statistics(state, c, all_rows, all.x, all.y);
  }

  /// Writes what backward of the norm needs, of the sums of all blocks. As finish_statistics().
  __device__ void finish_sums(const NormState& state, unsigned char* memory) const {
    const int channels = s_.out_channels, thread = static_cast<int>(threadIdx.x);
    // Two for each thread, which the weights' place holds. What is read there is read before it is written.
    Two* const shared = reinterpret_cast<Two*>(memory);
    shared[row_ * channels + first_ + sums_.channel()] = sums_.total();
    __syncthreads();
    const Two here =
        sum_of_parts(rows_, channels, shared, [&](int r, int k) { return shared[r * channels + k]; });
    const int part = static_cast<int>(blockIdx.y), parts = static_cast<int>(gridDim.y);
    if (thread < channels) state.partials[part * channels + thread] = make_double2(here.first, here.second);
    if (!is_last(state.finished)) return;
    const Two all = sum_of_parts(parts, channels, shared, [&](int p, int k) {
      const double2 sum = state.partials[p * channels + k];
      return Two{sum.x, sum.y};
    });
    if (thread < channels) set_gradients(state, thread, output_pixels(), all.first, all.second);
  }

 private:
  static constexpr int rounds = NT / 2;  // of store()

  __device__ double output_pixels() const {
    return static_cast<double>(s_.batch) * static_cast<double>(s_.out_h) * static_cast<double>(s_.out_w);
  }
  /// Where this lane stores eight channels of a pixel in a round; negative: nowhere. A round has two pixels
  /// of 16 channels, or one of 32.
  __device__ std::int64_t stored_at(const TileOrigin& origin, int first, int pixels, int round) const {
    const int group = lane_ / 4, quarter = lane_ % 4;
    const int number = first + group + 8 * (NT == 2 ? quarter / 2 : round);
    if (number >= pixels) return -1;
    const TilePixel pixel(s_, number);
    if (!pixel.exists(s_, origin)) return -1;
    return pixel.position(s_, origin) * s_.out_channels + first_channel();
  }
  /// If its sums are taken, of the norm's x what lies where store() stores.
  __device__ void load_norm_input(const TileOrigin& origin, int first, int pixels,
                                  uint4 (&x)[sums ? rounds : 1]) const {
    if constexpr (sums) {
#pragma unroll
      for (int round = 0; round < rounds; ++round) {
        const std::int64_t at = stored_at(origin, first, pixels, round);
        x[round] = at < 0 ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4*>(m_.norm.x + at);
      }
    }
  }
  __device__ int first_channel() const { return first_ + 8 * (lane_ % (NT == 2 ? 2 : 4)); }

  __device__ void load_weights(int tap, int step, int pair, std::uint32_t (&b)[4]) const {
    if constexpr (transposed)
      load_matrices<true>(
          weights_ + (small_conv_taps - 1 - tap) * 2 * s_.out_channels + 16 * step * pitch_ + 32 * pair, b);
    else
      load_matrices<false>(weights_ + tap * 2 * C + 32 * step + 16 * pair * pitch_, b);
  }

  __device__ void multiply(int first, int pixels, SharedAddress halo, float (&sum)[pixel_rows][NT][4]) const {
    SharedAddress window[pixel_rows];
#pragma unroll
    for (int i = 0; i < pixel_rows; ++i) {
      const int number = first + 16 * i + lane_ % 16;
      const TilePixel pixel(s_, number < pixels ? number : pixels - 1);
      window[i] = halo + pixel.window(s_) * pixel_pitch(C) + 16 * (lane_ / 16);
    }
#pragma unroll
    for (int tap = 0; tap < small_conv_taps; ++tap) {
      const int at = (tap / 3 * s_.halo_w + tap % 3) * pixel_pitch(C);
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        std::uint32_t a[pixel_rows][4];
#pragma unroll
        for (int i = 0; i < pixel_rows; ++i) load_matrices<false>(window[i] + at + 32 * step, a[i]);
#pragma unroll
        for (int pair = 0; pair < pairs; ++pair) {
          if constexpr (keeps_weights) {
            multiply_pair(a, kept_[tap][step][pair], pair, sum);
          } else {
            std::uint32_t b[4];
            load_weights(tap, step, pair, b);
            multiply_pair(a, b, pair, sum);
          }
        }
      }
    }
  }
  __device__ static void multiply_pair(const std::uint32_t (&a)[pixel_rows][4], const std::uint32_t (&b)[4],
                                       int pair, float (&sum)[pixel_rows][NT][4]) {
#pragma unroll
    for (int i = 0; i < pixel_rows; ++i) {
      multiply_add(sum[i][2 * pair], a[i], b[0], b[1]);
      multiply_add(sum[i][2 * pair + 1], a[i], b[2], b[3]);
    }
  }

  /// Bias, ReLU and rounding. Then the four lanes of a pixel exchange words, so that each stores 8 channels.
  /// `x`: of the norm whose sums are taken, what lies where this stores.
  __device__ void store(const TileOrigin& origin, int first, int pixels, const float (&sum)[NT][4],
                        const uint4 (&x)[sums ? rounds : 1]) {
    const int group = lane_ / 4, quarter = lane_ % 4;
    std::uint32_t words[NT][2];  // of the pixels `group` and `group` + 8
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float bias[2] = {};
      if (!transposed && m_.bias != nullptr) {
        const float* at = m_.bias + first_ + 8 * n + 2 * quarter;
        bias[0] = at[0], bias[1] = at[1];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[2] = {sum[n][2 * half] + bias[0], sum[n][2 * half + 1] + bias[1]};
        if (!transposed && m_.relu) v[0] = maths::relu(v[0]), v[1] = maths::relu(v[1]);
        words[n][half] = bf16_pair(v[0], v[1]);
      }
    }
    if constexpr (kind == Kind::with_statistics) {
      const auto exists = [&](int number) {
        return number < pixels && TilePixel(s_, number).exists(s_, origin);
      };
      moments_.add(words, exists(first + group), exists(first + group + 8));
    }
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      std::uint32_t w[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) w[k] = NT == 2 ? words[k % 2][k / 2] : words[k % NT][round];
      transpose_quads(w, quarter);
      const std::int64_t at = stored_at(origin, first, pixels, round);
      if (at < 0) continue;
      const uint4 values = make_uint4(w[0], w[1], w[2], w[3]);
      *reinterpret_cast<uint4*>(m_.out + at) = values;
      if constexpr (sums) sums_.add(m_.norm, first_channel(), values, x[round]);
    }
  }
  /// Among four lanes: word k of lane q becomes word q of lane k.
  __device__ static void transpose_quads(std::uint32_t (&w)[4], int quarter) {
#pragma unroll
    for (int distance = 2; distance > 0; distance /= 2) {
      const bool upper = (quarter & distance) != 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if ((k & distance) != 0) continue;
        const std::uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[k] : w[k + distance], distance);
        if (upper)
          w[k] = got;
        else
          w[k + distance] = got;
      }
    }
  }

  const SmallConvShape& s_;
  const SmallConvMemory& m_;
  int lane_, first_, row_, rows_, pitch_;
  SharedAddress weights_;
  std::uint32_t kept_[keeps_weights ? small_conv_taps : 1][steps][pairs][4];
  WarpMoments<NT> moments_;
  WarpGradientSums<NT> sums_;
};

/// Of a grid (1, blocks).
template <int C, int NT, Kind kind>
__global__ void __launch_bounds__(block_threads, 2)
    small_conv_kernel(SmallConvShape s, SmallConvMemory m, NormState state) {
  if constexpr (has_matrices) {
    using Warp = SmallConvWarp<C, NT, kind>;
    constexpr bool transposed = Warp::transposed;
    LPSGD_LAUNCHED_SHARED(memory);
    const int filters = transposed ? C : s.out_channels, channels = transposed ? s.out_channels : C;
    const int pitch = Warp::weight_pitch(channels), packs = small_conv_taps * channels / 8;
    if (C == 16 && !transposed && s.stored_channels < 16) {
      over_padded_packs<4>(
          filters * packs,
          [&](int i) { return load_padded(m.weights + i / 2 * s.stored_channels, s.stored_channels, i % 2); },
          [&](int i, const uint4& pack) {
            *reinterpret_cast<uint4*>(memory + i / packs * pitch + 16 * (i % packs)) = pack;
          });
    } else {
      for (int f = static_cast<int>(threadIdx.x) / 32; f < filters; f += static_cast<int>(blockDim.x) / 32)
        for (int p = static_cast<int>(threadIdx.x) % 32; p < packs; p += 32)
          copy_async(memory + f * pitch + 16 * p, m.weights + 8 * (f * packs + p), false);
    }
    commit_copies();

    unsigned char* const tiles = memory + filters * pitch;
    const int buffer_bytes = s.images * s.halo_h * s.halo_w * pixel_pitch(C);
    const int blocks = static_cast<int>(gridDim.y);
    const bool normalizes = !transposed && m.norm.x != nullptr;
    const Bf16* const in = normalizes ? m.norm.x : m.in;
    int tile = static_cast<int>(blockIdx.y), buffer = 0;
    fetch_halo<C, transposed ? 0 : 4>(s, tile, in, 0, tiles);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    Warp warp(s, m, shared_address(memory));
    warp.keep_weights();
    for (; tile < s.tiles; tile += blocks) {
      if (tile + blocks < s.tiles)
        fetch_halo<C, transposed ? 0 : 4>(s, tile + blocks, in, 0, tiles + (1 - buffer) * buffer_bytes);
      commit_copies();
      wait_for_copies<1>();
      unsigned char* const here = tiles + buffer * buffer_bytes;
      if (normalizes) normalize_halo<C>(s, tile, m.norm, 0, here);
      __syncthreads();
      warp.compute(tile, shared_address(here));
      __syncthreads();  // before the buffer is filled again
      buffer = 1 - buffer;
    }
    if constexpr (kind == Kind::with_statistics) warp.finish_statistics(state, memory);
    if constexpr (Warp::sums) warp.finish_sums(state, memory);
  }
}

template <int C, int NT>
cudaError_t launch(Kind kind, const SmallConv& conv, const SmallConvMemory& memory, const NormState& state,
                   cudaStream_t stream) {
  const auto run = [&](auto* kernel) {
    const cudaError_t status = allow_shared(kernel, conv.shared);
    if (status != cudaSuccess) return status;
    LPSGD_LAUNCH_SHARED(kernel, dim3(1, static_cast<unsigned>(conv.blocks)),
                        static_cast<unsigned>(conv.threads), static_cast<unsigned>(conv.shared), stream)
    (conv.shape, memory, state);
    return cudaGetLastError();
  };
  switch (kind) {
    case Kind::forward:
      return run(small_conv_kernel<C, NT, Kind::forward>);
    case Kind::with_statistics:
      return run(small_conv_kernel<C, NT, Kind::with_statistics>);
    case Kind::transposed:
      return run(small_conv_kernel<C, NT, Kind::transposed>);
    case Kind::transposed_with_sums:
      return run(small_conv_kernel<C, NT, Kind::transposed_with_sums>);
  }
  return cudaErrorInvalidValue;
}

template <int C>
cudaError_t launch(Kind kind, const SmallConv& conv, const SmallConvMemory& memory, const NormState& state,
                   cudaStream_t stream) {
  return conv.shape.out_channels % 32 == 0 ? launch<C, 4>(kind, conv, memory, state, stream)
                                           : launch<C, 2>(kind, conv, memory, state, stream);
}

cudaError_t launch(Kind kind, const SmallConv& conv, const SmallConvMemory& memory, const NormState& state,
                   cudaStream_t stream) {
  switch (conv.shape.in_channels) {
    case 16:
      return launch<16>(kind, conv, memory, state, stream);
    case 32:
      return launch<32>(kind, conv, memory, state, stream);
    case 48:
      return launch<48>(kind, conv, memory, state, stream);
    default:
      return launch<64>(kind, conv, memory, state, stream);
  }
}

}  // namespace

cudaError_t launch_small_conv(const SmallConv& conv, const SmallConvMemory& memory, cudaStream_t stream) {
  return launch(conv.transposed ? Kind::transposed : Kind::forward, conv, memory, {}, stream);
}
cudaError_t launch_small_conv(const SmallConv& conv, const SmallConvMemory& memory, const NormState& state,
                              cudaStream_t stream) {
  return launch(Kind::with_statistics, conv, memory, state, stream);
}
cudaError_t launch_small_conv(const SmallConv& conv, const SmallConvMemory& memory, const NormInput& norm,
                              const NormState& state, cudaStream_t stream) {
  SmallConvMemory with_norm = memory;
  with_norm.norm = norm;
  return launch(Kind::transposed_with_sums, conv, with_norm, state, stream);
}

}  // namespace lpsgd::cuda
