// Layer normalisation; nn/cpu/layer_norm.cc does the same on the CPU. Rows of up to 2048 values, or of up to
// 512 where packs do not fit, are in registers.
#include "nn/cuda/row_norm_device.h"

namespace lpsgd::cuda {
namespace {

/// Calls body<T, team, V, N>().
template <class Body>
cudaError_t launch(DataType type, int width, const Body& body) {
  return with_type(type, [&]<class T>(T) {
    constexpr int V = pack_of<T>;
    if (width % V != 0) {
      if (width <= 512)
        body.template operator()<T, 32, 1, 16>();
      else
        body.template operator()<T, block_threads, 1, 0>();
    } else if (width <= 128) {
      body.template operator()<T, 8, V, 16 / V>();
    } else if (width <= 512) {
      body.template operator()<T, 32, V, 16 / V>();
    } else if (width <= 1024) {
      body.template operator()<T, 32, V, 32 / V>();
    } else if (width <= 2048) {
      body.template operator()<T, block_threads, V, 8 / V>();
    } else {
      body.template operator()<T, block_threads, V, 0>();
    }
  });
}

}  // namespace

cudaError_t launch_layer_norm(DataType type, const LayerNormShape& shape, const void* x, const float* weight,
                              const float* bias, void* y, RowMoments* moments, cudaStream_t stream) {
  return launch(type, shape.width, [&]<class T, int team, int V, int N>() {
    LPSGD_LAUNCH((row_norm_kernel<FeatureRows, T, team, V, N>), blocks_for_rows<team>(shape.rows),
                 block_threads, stream)
    (FeatureRows(shape), static_cast<const T*>(x), weight, bias, static_cast<T*>(y), moments);
  });
}

cudaError_t launch_layer_norm_gradient(DataType type, const LayerNormShape& shape, const void* g,
                                       const void* x, const float* weight, const RowMoments* moments,
                                       void* dx, cudaStream_t stream) {
  return launch(type, shape.width, [&]<class T, int team, int V, int N>() {
    LPSGD_LAUNCH((row_norm_gradient_kernel<FeatureRows, T, team, V, N>), blocks_for_rows<team>(shape.rows),
                 block_threads, stream)
    (FeatureRows(shape), static_cast<const T*>(g), static_cast<const T*>(x), weight, nullptr, moments,
     static_cast<T*>(dx));
  });
}

cudaError_t launch_layer_norm_sums(DataType type, const void* g, const void* x, const RowMoments* moments,
                                   const RowSums& sums, float* dweight, float* dbias, cudaStream_t stream) {
  return launch_row_norm_sums(type, FeatureRows({}), g, x, nullptr, nullptr, moments, sums, dweight, dbias,
                              stream);
}

}  // namespace lpsgd::cuda
