// Group normalisation; nn/cpu/group_norm.cc does the same on the CPU. Groups of up to 2048 values, or of up
// to 1024 whose channels are no multiple of four, are in registers.
#include "nn/cuda/row_norm_device.h"

namespace lpsgd::cuda {
namespace {

/// Calls body<T, team, V, N>().
template <class Body>
cudaError_t launch(DataType type, const GroupRows& rows, const Body& body) {
  return with_type(type, [&]<class T>(T) {
    const auto with = [&]<int V>() {
      constexpr int few = V < 4 ? 4 : 8;  // values of a thread
      if (rows.width <= 32 * few)
        body.template operator()<T, 32, V, few / V>();
      else if (rows.width <= block_threads * few)
        body.template operator()<T, block_threads, V, few / V>();
      else
        body.template operator()<T, block_threads, V, 0>();
    };
    if constexpr (pack_of<T> == 8) {
      if (rows.in_group % 8 == 0) return with.template operator()<8>();
    }
    if (rows.in_group % 4 == 0) return with.template operator()<4>();
    if (rows.in_group % 2 == 0) return with.template operator()<2>();
    with.template operator()<1>();
  });
}

}  // namespace

cudaError_t launch_group_norm(DataType type, const GroupNormShape& shape, const void* x, const float* weight,
                              const float* bias, void* y, RowMoments* moments, cudaStream_t stream) {
  const GroupRows rows(shape);
  return launch(type, rows, [&]<class T, int team, int V, int N>() {
    LPSGD_LAUNCH((row_norm_kernel<GroupRows, T, team, V, N>), blocks_for_rows<team>(rows.rows), block_threads,
                 stream)
    (rows, static_cast<const T*>(x), weight, bias, static_cast<T*>(y), moments);
  });
}

cudaError_t launch_group_norm_gradient(DataType type, const GroupNormShape& shape, const void* g,
                                       const void* x, const float* weight, const float* bias,
                                       const RowMoments* moments, void* dx, cudaStream_t stream) {
  const GroupRows rows(shape);
  return launch(type, rows, [&]<class T, int team, int V, int N>() {
    LPSGD_LAUNCH((row_norm_gradient_kernel<GroupRows, T, team, V, N>), blocks_for_rows<team>(rows.rows),
                 block_threads, stream)
    (rows, static_cast<const T*>(g), static_cast<const T*>(x), weight, bias, moments, static_cast<T*>(dx));
  });
}

cudaError_t launch_group_norm_sums(DataType type, const GroupNormShape& shape, const void* g, const void* x,
                                   const float* weight, const float* bias, const RowMoments* moments,
                                   const RowSums& sums, float* dweight, float* dbias, cudaStream_t stream) {
  return launch_row_norm_sums(type, GroupRows(shape), g, x, weight, bias, moments, sums, dweight, dbias,
                              stream);
}

}  // namespace lpsgd::cuda
