// Dropout (nn/dropout.h): one Philox block for four values of a sample.
//
// Memory moved per value of b bytes: forward 2 b (x, y) and the mask's 1, in loads and stores of four values;
// backward (gradients + 1) b and 1, in 16 bytes and the mask's in 16 / b.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

template <class T>
__global__ void dropout_kernel(DropoutDraws draws, const PassState* pass, std::int64_t batch,
                               std::int64_t per_sample, const T* x, T* y, std::uint8_t* kept) {
  const std::int64_t groups = (per_sample + 3) / 4;
  const std::uint32_t step = pass->step, first = draws.first + pass->first;
  for (std::int64_t i = thread_number(); i < batch * groups; i += thread_count()) {
    const std::int64_t n = i / groups, e = i % groups * 4;
    const Philox4x32 draw =
        draws.draw(static_cast<std::uint32_t>(e / 4), first + static_cast<std::uint32_t>(n), step);
    const std::int64_t at = n * per_sample + e;
    if (per_sample % 4 == 0) {
      float v[4];
      std::uint32_t mask = 0;
      load<4>(x + at, v);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const bool keep = draw.x[k] >= draws.limit;
        mask |= static_cast<std::uint32_t>(keep) << 8 * k;
        v[k] = keep ? v[k] * draws.scale : 0.0f;
      }
      *reinterpret_cast<std::uint32_t*>(kept + at) = mask;
      store<4>(y + at, v);
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (e + k >= per_sample) break;
      const bool keep = draw.x[k] >= draws.limit;
      kept[at + k] = keep;
      y[at + k] = from_float<T>(keep ? as_float(x[at + k]) * draws.scale : 0.0f);
    }
  }
}

template <class T>
__global__ void dropout_gradient_kernel(Terms gradients, const std::uint8_t* kept, float scale, T* dx,
                                        std::int64_t n) {
  over_values<pack_of<T>>(n, [&]<int V>(std::int64_t i) {
    float g[V];
    load_sum<V, T>(gradients, i, g);
    std::uint32_t mask[(V + 3) / 4] = {};
    if constexpr (V == 8) {
      const uint2 words = *reinterpret_cast<const uint2*>(kept + i);
      mask[0] = words.x, mask[1] = words.y;
    } else if constexpr (V == 4) {
      mask[0] = *reinterpret_cast<const std::uint32_t*>(kept + i);
    } else {
      mask[0] = kept[i];
    }
#pragma unroll
    for (int k = 0; k < V; ++k) g[k] = mask[k / 4] >> k % 4 * 8 & 0xffu ? g[k] * scale : 0.0f;
    store<V>(dx + i, g);
  });
}

}  // namespace

cudaError_t launch_dropout(DataType type, const DropoutDraws& draws, const PassState* pass,
                           std::int64_t batch, std::int64_t per_sample, const void* x, void* y,
                           std::uint8_t* kept, cudaStream_t stream) {
  const std::int64_t groups = batch * ((per_sample + 3) / 4);
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(dropout_kernel<T>, blocks_for(groups), block_threads, stream)
    (draws, pass, batch, per_sample, static_cast<const T*>(x), static_cast<T*>(y), kept);
  });
}

cudaError_t launch_dropout_gradient(DataType type, const Terms& gradients, const std::uint8_t* kept,
                                    float scale, void* dx, std::int64_t n, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(dropout_gradient_kernel<T>, blocks_for(n / pack_of<T>), block_threads, stream)
    (gradients, kept, scale, static_cast<T*>(dx), n);
  });
}

}  // namespace lpsgd::cuda
