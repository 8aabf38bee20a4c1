// The sums of a batch norm's backward over the gradient of its output, which a convolution writes: of the
// gradient behind the ReLU, and of its products with x - mean. All are added in a fixed order: of a lane's
// values, of a warp's and then a block's tiles, of all blocks.
#pragma once

#include "nn/cuda/norm_device.h"
#include "nn/cuda/row_sums_device.h"
#include "nn/cuda/small_conv.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {

/// Of the 8 NT channels of a warp. A lane adds eight channels of a pixel at a time, at most 16 pixels of a
/// tile in float32. Then it goes on in double: a lane gets the sums of one channel.
template <int NT>
class WarpGradientSums {
 public:
  __device__ void begin_tile() {
#pragma unroll
    for (int i = 0; i < columns; ++i) sum_[i] = product_[i] = 0;
  }
  /// Of channels `first` to `first` + 7, in the same order: the gradient as it is stored, and the norm's x.
  __device__ void add(const NormInput& norm, int first, const uint4& gradient, const uint4& x) {
    float gradients[columns], xs[columns];
    widen_pack(gradient, gradients), widen_pack(x, xs);
    constexpr int half = columns / 2;  // of the constants at a time: registers are few
#pragma unroll
    for (int begin = 0; begin < columns; begin += half) {
      const NormConstants<half> k(norm, first + begin);
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float difference = xs[begin + i] - k.mean[i];
        float v = gradients[begin + i];
        if (norm.relu) v = maths::where_positive(difference * k.scale[i] + k.bias[i], v);
        sum_[begin + i] += v;
        product_[begin + i] += v * difference;
      }
    }
  }
  __device__ void end_tile() {
    Two both[columns];
#pragma unroll
    for (int i = 0; i < columns; ++i)
      both[i] = {static_cast<double>(sum_[i]), static_cast<double>(product_[i])};
    share_over_lanes(both);
    // With 16 channels two lanes of a quad have the same.
    if constexpr (NT == 2) both[0] += from_lane(both[0], 2);
    total_ += both[0];
  }
  /// The channel, counted from the warp's first, whose sums this lane has. Two lanes may have the same.
  __device__ static int channel() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return lane % (NT == 2 ? 2 : 4) * columns + lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
  }
  __device__ const Two& total() const { return total_; }

 private:
  static constexpr int columns = 8;

  float sum_[columns], product_[columns];
  Two total_;
};

/// For each channel the sum of `parts` values from(p, c), of which the threads with the same channel c take
/// every `heights`-th each. `shared` holds a value for each thread. All threads of the block call it; the
/// result is that of the first thread of each channel.
template <class From>
__device__ Two sum_of_parts(int parts, int channels, Two* shared, const From& from) {
  const int thread = static_cast<int>(threadIdx.x), heights = static_cast<int>(blockDim.x) / channels;
  const int c = thread % channels, y = thread / channels;
  Two sum;
  if (y < heights)
    over_parts(
        parts, y, heights, [&](int p) { return from(p, c); }, [&](int, const Two& part) { sum += part; });
  return sum_over_heights(sum, channels, heights, shared, thread);
}

}  // namespace lpsgd::cuda
