// The statistics of what a convolution writes, for the batch norm that reads it: of each channel the mean,
// and the sum of the squares of differences from it (M2). Moments of two sets are combined as by Chan, Golub
// and LeVeque (1979), in a fixed order: of a lane's values, of a warp's and then a block's tiles, of all
// blocks.
#pragma once

#include "nn/cuda/norm_device.h"
#include "nn/cuda/row_sums_device.h"
#include "nn/cuda/small_conv.h"

namespace lpsgd::cuda {

/// Of the 8 NT channels of a warp. Values have eight significant bits and squares 16, and a lane adds at most
/// 32 of a tile. So where values are far from zero and near each other its sums in float32 are exact. Then it
/// goes on in double: a lane gets the sums of one channel, and has its moments.
template <int NT>
class WarpMoments {
 public:
  __device__ void begin_tile() {
    count_ = 0;
#pragma unroll
    for (int i = 0; i < columns; ++i) sum_[i] = square_[i] = 0;
  }
  /// The values that are stored, as pairs in words: of this lane's two pixels, if they exist.
  __device__ void add(const std::uint32_t (&words)[NT][2], bool first_exists, bool second_exists) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!(half == 0 ? first_exists : second_exists)) continue;
      ++count_;
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const std::uint32_t word = words[i / 2][half];
        const float v = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
        sum_[i] += v;
        square_[i] += v * v;
      }
    }
  }
  __device__ void end_tile() {
    Two both[columns];
#pragma unroll
    for (int i = 0; i < columns; ++i)
      both[i] = {static_cast<double>(sum_[i]), static_cast<double>(square_[i])};
    share_over_lanes(both);
    int count = count_;
#pragma unroll
    for (int distance = 16; distance >= 4; distance /= 2) count += __shfl_xor_sync(all, count, distance);
    if (count == 0) return;
    const double n = count, mean = both[0].first / n, total = total_ + n, delta = mean - mean_;
    m2_ += both[0].second - both[0].first * mean + delta * delta * total_ * n / total;
    mean_ += delta * n / total;
    total_ = total;
  }
  /// The channel, counted from the warp's first, whose moments this lane has. Two lanes may have the same.
  __device__ static int channel() {
    const int lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4 * columns / 8;
    return column / 2 * 8 + lane % 4 * 2 + column % 2;
  }
  __device__ double count() const { return total_; }
  __device__ double2 moments() const { return make_double2(mean_, m2_); }

 private:
  static constexpr int columns = 2 * NT;  // of a lane, before lanes exchange them
  static constexpr unsigned all = 0xffffffffu;

  int count_ = 0;
  float sum_[columns], square_[columns];
  double total_ = 0, mean_ = 0, m2_ = 0;
};

/// For channel c the combination of `parts` moments, of which the threads with the same c take every
/// `heights`-th each: from(p, c) and its count of(p). `shared` holds a double for each thread. All threads of
/// the block call it; the result is that of the first thread of each channel.
template <class From, class Of>
__device__ double2 combine_moments(int parts, int channels, double rows, double* shared, const From& from,
                                   const Of& of) {
  struct Part {
    double2 moments;
    double n;
  };
  const int thread = static_cast<int>(threadIdx.x), heights = static_cast<int>(blockDim.x) / channels;
  const int c = thread % channels, y = thread / channels;
  const double pivot = from(0, c).x;
  double sum = 0, squares = 0;
  if (y < heights)
    over_parts(
        parts, y, heights,
        [&](int p) {
          return Part{from(p, c), of(p)};
        },
        [&](int, const Part& part) { add_moments(part.n, pivot, part.moments, sum, squares); });
  sum = sum_over_heights(sum, channels, heights, shared, thread);
  squares = sum_over_heights(squares, channels, heights, shared, thread);
  return moments_of(rows, pivot, sum, squares);
}

}  // namespace lpsgd::cuda
