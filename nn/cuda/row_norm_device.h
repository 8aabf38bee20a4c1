// Kernels of layer and group normalisation: y = (x - mean) / sqrt(variance + eps) * weight + bias in each
// row. `Rows` says what a row is: the features of a frame or the channels of a pixel, which lie side by side,
// or a sample's group of channels, a few of each pixel's. Eight threads, a warp or a block have a row in
// registers; longer rows are read again from cache.
//
// With n = (x - mean) / deviation and h = g * weight, the gradients are
//   dx = (h - mean of h - n * mean of h n) / deviation,
// and the sums over rows of g n for the weight and of g for the bias. With a ReLU behind the normalisation, g
// counts as 0 where its input was not positive.
//
// Memory moved per value of b bytes, in loads and stores of 16 bytes where the width allows; 8 bytes of
// moments for each row:
//   forward       2 b (x, y)
//   gradient      3 b (g, x, dx)
//   sums          2 b (g, x)
// Groups of fewer channels than 16 bytes hold share the memory's sectors with their neighbours, which the L2
// cache serves.
#pragma once

#include "nn/cuda/row_sums_device.h"
#include "nn/cuda/row_team_device.h"

namespace lpsgd::cuda {

/// Rows whose values lie side by side.
struct FeatureRows : LayerNormShape {
  static constexpr bool relu = false;
  explicit FeatureRows(const LayerNormShape& shape) : LayerNormShape(shape) {}
  __device__ __forceinline__ std::int64_t first(std::int64_t row) const { return row * width; }
  __device__ __forceinline__ std::int64_t place(int c) const { return c; }
  __device__ __forceinline__ int parameter(std::int64_t, int c) const { return c; }
  /// The moments of pixel or frame `pixel`.
  __device__ __forceinline__ std::int64_t moments_of(std::int64_t pixel, int) const { return pixel; }
};

/// Rows that are groups of channels: value c of a row is channel c % in_group of the group in pixel c /
/// in_group. A batch has fewer than 2^32 pixels, and so many rows: divisions of 32 bits are fast.
struct GroupRows : GroupNormShape {
  std::int64_t rows;
  int width, in_group;
  explicit GroupRows(const GroupNormShape& shape)
      : GroupNormShape(shape),
        rows(shape.samples * shape.groups),
        width(static_cast<int>(shape.pixels * (shape.channels / shape.groups))),
        in_group(shape.channels / shape.groups) {}
  __device__ __forceinline__ std::uint32_t of_sample() const { return static_cast<std::uint32_t>(groups); }
  __device__ __forceinline__ std::int64_t first(std::int64_t row) const {
    const std::uint32_t number = static_cast<std::uint32_t>(row), sample = number / of_sample();
    return sample * pixels * channels + (number - sample * of_sample()) * in_group;
  }
  __device__ __forceinline__ std::int64_t place(int c) const {
    const int pixel = c / in_group;
    return static_cast<std::int64_t>(pixel) * channels + (c - pixel * in_group);
  }
  __device__ __forceinline__ int parameter(std::int64_t row, int c) const {
    return static_cast<int>(static_cast<std::uint32_t>(row) % of_sample()) * in_group + c % in_group;
  }
  __device__ __forceinline__ std::int64_t moments_of(std::int64_t pixel, int channel) const {
    const std::uint32_t sample = static_cast<std::uint32_t>(pixel) / static_cast<std::uint32_t>(pixels);
    return static_cast<std::int64_t>(sample) * groups + channel / in_group;
  }
};

template <class Rows, class T, int team, int V, int N>
__global__ void __launch_bounds__(block_threads)
    row_norm_kernel(Rows s, const T* x, const float* weight, const float* bias, T* y, RowMoments* moments) {
  const float count = static_cast<float>(s.width);
  over_team_rows<team>(s.rows, [&](std::int64_t row, bool exists) {
    const int width = exists ? s.width : 0;
    const std::int64_t first = s.first(row);
    RowPacks<team, V, N, T, Rows> packs(x + first, width, s);
    float sum = 0, squares = 0;
    over_packs<team, V, N>(width, [&](int u, int c) {
      const auto& v = packs.at(u, c, s);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += v[k];
    });
    const float mean = sum_over_team<team>(sum) / count;
    over_packs<team, V, N>(width, [&](int u, int c) {
      const auto& v = packs.at(u, c, s);
#pragma unroll
      for (int k = 0; k < V; ++k) squares += (v[k] - mean) * (v[k] - mean);
    });
    const float inverse = 1.0f / sqrtf(sum_over_team<team>(squares) / count + s.eps);
    over_packs<team, V, N>(width, [&](int u, int c) {
      auto& v = packs.at(u, c, s);
      float w[V], b[V] = {};
      load<V>(weight + s.parameter(row, c), w);
      if (bias != nullptr) load<V>(bias + s.parameter(row, c), b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        v[k] = (v[k] - mean) * inverse * w[k] + b[k];
        if (s.relu) v[k] = maths::relu(v[k]);
      }
      store<V>(y + first + s.place(c), v);
    });
    if (moments != nullptr && exists && threadIdx.x % team == 0) moments[row] = make_float2(mean, inverse);
  });
}

template <class Rows, class T, int team, int V, int N>
__global__ void __launch_bounds__(block_threads, 2)
    row_norm_gradient_kernel(Rows s, const T* g, const T* x, const float* weight, const float* bias,
                             const RowMoments* moments, T* dx) {
  const float count = static_cast<float>(s.width);
  over_team_rows<team>(s.rows, [&](std::int64_t row, bool exists) {
    const int width = exists ? s.width : 0;
    const std::int64_t first = s.first(row);
    RowPacks<team, V, N, T, Rows> gradients(g + first, width, s), packs(x + first, width, s);
    const RowMoments of_row = exists ? moments[row] : make_float2(0, 0);
    // h and n of pack (u, c), if they are not in registers yet.
    const auto prepare = [&](float(&h)[V], float(&n)[V], int c) {
      float w[V], b[V] = {};
      load<V>(weight + s.parameter(row, c), w);
      if (s.relu) load<V>(bias + s.parameter(row, c), b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        n[k] = (n[k] - of_row.x) * of_row.y;
        if (s.relu) h[k] = maths::where_positive(n[k] * w[k] + b[k], h[k]);
        h[k] *= w[k];
      }
    };
    float sum = 0, products = 0;
    over_packs<team, V, N>(width, [&](int u, int c) {
      auto& h = gradients.at(u, c, s);
      auto& n = packs.at(u, c, s);
      prepare(h, n, c);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += h[k], products += h[k] * n[k];
    });
    sum = sum_over_team<team>(sum) / count;
    products = sum_over_team<team>(products) / count;
    over_packs<team, V, N>(width, [&](int u, int c) {
      auto& h = gradients.at(u, c, s);
      auto& n = packs.at(u, c, s);
      if (N == 0) prepare(h, n, c);
#pragma unroll
      for (int k = 0; k < V; ++k) h[k] = (h[k] - sum - n[k] * products) * of_row.y;
      store<V>(dx + first + s.place(c), h);
    });
  });
}

/// Rows that a thread loads before it uses the first.
template <int V>
constexpr int rows_loaded = V == 8 ? 2 : 4;

/// The parameters' gradients: sums over pixels or frames, which the cut divides. The channels of a pack have
/// the same moments. `weight` and `bias` are read with a ReLU alone.
template <class Rows, class T, int V>
__global__ void __launch_bounds__(block_threads, 2)
    row_norm_sums_kernel(Rows s, const T* g, const T* x, const float* weight, const float* bias,
                         const RowMoments* moments, RowSums sums, float* dweight, float* dbias) {
  const Cut& cut = sums.cut;
  __shared__ Two shared[sums_of_block<V, Two>];
  const RowRange range(cut, V);
  LongSum<V> sum, products;
  if (range.active) {
    float w[V] = {}, b[V] = {};
    if (s.relu) load<V>(weight + range.channel, w), load<V>(bias + range.channel, b);
    int batches = 0;  // of rows
    over_rows<rows_loaded<V>>(range, cut, [&]<int rows>(std::int64_t r) {
      float h[rows][V], n[rows][V];
      RowMoments of_row[rows];
#pragma unroll
      for (int u = 0; u < rows; ++u) {
        const std::int64_t row = r + u * cut.ty, at = row * cut.channels + range.channel;
        load<V>(g + at, h[u]);
        load<V>(x + at, n[u]);
        of_row[u] = moments[s.moments_of(row, range.channel)];
      }
#pragma unroll
      for (int u = 0; u < rows; ++u) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          n[u][k] = (n[u][k] - of_row[u].x) * of_row[u].y;
          if (s.relu) h[u][k] = maths::where_positive(n[u][k] * w[k] + b[k], h[u][k]);
          sum.add(k, h[u][k]);
          products.add(k, h[u][k] * n[u][k]);
        }
      }
      if (++batches % groups_in_float == 0) sum.flush(), products.flush();
    });
    sum.flush(), products.flush();
  }
  const TileChannel channel(cut, V, range.thread);
  Two all;
  if (!sum_over_tile(sum, products, cut, channel, range.thread, shared, sums.partials, sums.finished, all))
    return;
  if (dbias != nullptr) dbias[channel.number] = static_cast<float>(all.first);
  dweight[channel.number] = static_cast<float>(all.second);
}

/// Launches row_norm_sums_kernel.
template <class Rows>
cudaError_t launch_row_norm_sums(DataType type, const Rows& rows, const void* g, const void* x,
                                 const float* weight, const float* bias, const RowMoments* moments,
                                 const RowSums& sums, float* dweight, float* dbias, cudaStream_t stream) {
  const Cut& cut = sums.cut;
  const dim3 blocks(static_cast<unsigned>(cut.tiles), static_cast<unsigned>(cut.parts));
  const dim3 threads(static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty));
  return with_type(type, [&]<class T>(T) {
    const auto with = [&]<int V>() {
      LPSGD_LAUNCH((row_norm_sums_kernel<Rows, T, V>), blocks, threads, stream)
      (rows, static_cast<const T*>(g), static_cast<const T*>(x), weight, bias, moments, sums, dweight, dbias);
    };
    if constexpr (pack_of<T> == 8) {
      if (cut.pack == 8) with.template operator()<8>();
    }
    if (cut.pack == 4) with.template operator()<4>();
    if (cut.pack == 1) with.template operator()<1>();
  });
}

}  // namespace lpsgd::cuda
