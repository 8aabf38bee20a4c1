// Layer normalisation: y = (x - mean) / sqrt(variance + eps) * weight + bias in each row.
// nn/cpu/layer_norm.cc does the same on the CPU. Eight threads, a warp or a block have a row in registers;
// rows of more than 2048 values, or of more than 512 where packs do not fit, are read again from cache.
//
// With n = (x - mean) / deviation and h = g * weight, the gradients are
//   dx = (h - mean of h - n * mean of h n) / deviation,
// and the sums over rows of g n for the weight and of g for the bias.
//
// Memory moved per value of b bytes, in loads and stores of 16 bytes where the width allows; 8 bytes of
// moments for each row:
//   layer_norm    2 b (x, y)
//   gradient      3 b (g, x, dx)
//   sums          2 b (g, x)
#include "nn/cuda/row_sums_device.h"
#include "nn/cuda/row_team_device.h"

namespace lpsgd::cuda {
namespace {

template <class T, int team, int V, int N>
__global__ void __launch_bounds__(block_threads)
    layer_norm_kernel(LayerNormShape s, const T* x, const float* weight, const float* bias, T* y,
                      RowMoments* moments) {
  const float count = static_cast<float>(s.width);
  over_team_rows<team>(s.rows, [&](std::int64_t row, bool exists) {
    const int width = exists ? s.width : 0;
    const std::int64_t first = row * s.width;
    RowPacks<team, V, N, T> packs(x + first, width);
    float sum = 0, squares = 0;
    over_packs<team, V, N>(width, [&](int u, int c) {
      const auto& v = packs.at(u, c);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += v[k];
    });
    const float mean = sum_over_team<team>(sum) / count;
    over_packs<team, V, N>(width, [&](int u, int c) {
      const auto& v = packs.at(u, c);
#pragma unroll
      for (int k = 0; k < V; ++k) squares += (v[k] - mean) * (v[k] - mean);
    });
    const float inverse = 1.0f / sqrtf(sum_over_team<team>(squares) / count + s.eps);
    over_packs<team, V, N>(width, [&](int u, int c) {
      auto& v = packs.at(u, c);
      float w[V], b[V] = {};
      load<V>(weight + c, w);
      if (bias != nullptr) load<V>(bias + c, b);
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] = (v[k] - mean) * inverse * w[k] + b[k];
      store<V>(y + first + c, v);
    });
    if (moments != nullptr && exists && threadIdx.x % team == 0) moments[row] = make_float2(mean, inverse);
  });
}

template <class T, int team, int V, int N>
__global__ void __launch_bounds__(block_threads)
    layer_norm_gradient_kernel(LayerNormShape s, const T* g, const T* x, const float* weight,
                               const RowMoments* moments, T* dx) {
  const float count = static_cast<float>(s.width);
  over_team_rows<team>(s.rows, [&](std::int64_t row, bool exists) {
    const int width = exists ? s.width : 0;
    const std::int64_t first = row * s.width;
    RowPacks<team, V, N, T> gradients(g + first, width), packs(x + first, width);
    const RowMoments of_row = exists ? moments[row] : make_float2(0, 0);
    // h and n of pack (u, c), if they are not in registers yet.
    const auto prepare = [&](float(&h)[V], float(&n)[V], int c) {
      float w[V];
      load<V>(weight + c, w);
#pragma unroll
      for (int k = 0; k < V; ++k) h[k] *= w[k], n[k] = (n[k] - of_row.x) * of_row.y;
    };
    float sum = 0, products = 0;
    over_packs<team, V, N>(width, [&](int u, int c) {
      auto& h = gradients.at(u, c);
      auto& n = packs.at(u, c);
      prepare(h, n, c);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += h[k], products += h[k] * n[k];
    });
    sum = sum_over_team<team>(sum) / count;
    products = sum_over_team<team>(products) / count;
    over_packs<team, V, N>(width, [&](int u, int c) {
      auto& h = gradients.at(u, c);
      auto& n = packs.at(u, c);
      if (N == 0) prepare(h, n, c);
#pragma unroll
      for (int k = 0; k < V; ++k) h[k] = (h[k] - sum - n[k] * products) * of_row.y;
      store<V>(dx + first + c, h);
    });
  });
}

/// Rows that a thread loads before it uses the first.
template <int V>
constexpr int rows_loaded = V == 8 ? 2 : 4;

template <class T, int V>
__global__ void __launch_bounds__(block_threads, 2)
    layer_norm_sums_kernel(const T* g, const T* x, const RowMoments* moments, Cut cut, double2* partials,
                           unsigned* finished, float* dweight, float* dbias) {
  __shared__ Two shared[sums_of_block<V, Two>];
  const RowRange range(cut, V);
  LongSum<V> sum, products;
  if (range.active) {
    int groups = 0;
    over_rows<rows_loaded<V>>(range, cut, [&]<int rows>(std::int64_t r) {
      float h[rows][V], n[rows][V];
      RowMoments of_row[rows];
#pragma unroll
      for (int u = 0; u < rows; ++u) {
        const std::int64_t row = r + u * cut.ty, at = row * cut.channels + range.channel;
        load<V>(g + at, h[u]);
        load<V>(x + at, n[u]);
        of_row[u] = moments[row];
      }
#pragma unroll
      for (int u = 0; u < rows; ++u) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          sum.add(k, h[u][k]);
          products.add(k, h[u][k] * ((n[u][k] - of_row[u].x) * of_row[u].y));
        }
      }
      if (++groups % groups_in_float == 0) sum.flush(), products.flush();
    });
    sum.flush(), products.flush();
  }
  const TileChannel channel(cut, V, range.thread);
  Two all;
  if (!sum_over_tile(sum, products, cut, channel, range.thread, shared, partials, finished, all)) return;
  if (dbias != nullptr) dbias[channel.number] = static_cast<float>(all.first);
  dweight[channel.number] = static_cast<float>(all.second);
}

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
    LPSGD_LAUNCH((layer_norm_kernel<T, team, V, N>), blocks_for_rows<team>(shape.rows), block_threads, stream)
    (shape, static_cast<const T*>(x), weight, bias, static_cast<T*>(y), moments);
  });
}

cudaError_t launch_layer_norm_gradient(DataType type, const LayerNormShape& shape, const void* g,
                                       const void* x, const float* weight, const RowMoments* moments,
                                       void* dx, cudaStream_t stream) {
  return launch(type, shape.width, [&]<class T, int team, int V, int N>() {
    LPSGD_LAUNCH((layer_norm_gradient_kernel<T, team, V, N>), blocks_for_rows<team>(shape.rows),
                 block_threads, stream)
    (shape, static_cast<const T*>(g), static_cast<const T*>(x), weight, moments, static_cast<T*>(dx));
  });
}

cudaError_t launch_layer_norm_sums(DataType type, const void* g, const void* x, const RowMoments* moments,
                                   const Cut& cut, double2* partials, unsigned* finished, float* dweight,
                                   float* dbias, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(cut.tiles), static_cast<unsigned>(cut.parts));
  const dim3 threads(static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty));
  return with_type(type, [&]<class T>(T) {
    const auto with = [&]<int V>() {
      LPSGD_LAUNCH((layer_norm_sums_kernel<T, V>), blocks, threads, stream)
      (static_cast<const T*>(g), static_cast<const T*>(x), moments, cut, partials, finished, dweight, dbias);
    };
    if constexpr (pack_of<T> == 8) {
      if (cut.pack == 8) with.template operator()<8>();
    }
    if (cut.pack == 4) with.template operator()<4>();
    if (cut.pack == 1) with.template operator()<1>();
  });
}

}  // namespace lpsgd::cuda
