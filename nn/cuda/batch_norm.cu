// Batch normalisation over NHWC with the sum and the ReLU behind it. nn/cpu/batch_norm.cc does the same on
// the CPU.
//
// Statistics and gradient sums are sums over rows for each channel. A block's moments are taken around the
// first value that it reads of the channel, and then combined around the first block's mean, so that a mean
// far from zero costs no precision.
//
// Memory moved per value of b bytes, in loads and stores of 16 bytes where channels allow. Each thread has
// those of several rows on their way at once:
//   statistics      b
//   normalize       2 b (x, y), with a residual b more
//   gradient_sums   (gradients + 1) b; 2 b more (y, masked) where several uses need the gradient behind the
//                   ReLU
//
//   gradient        3 b (dy, x, dx)
#include "nn/cuda/access_device.h"
#include "nn/cuda/norm_device.h"
#include "nn/cuda/row_sums_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

/// Rows that a thread loads before it uses the first.
template <int V>
constexpr int rows_at_once = V == 8 ? 4 : 8;

// ---- forward

template <class T, int V>
__global__ void __launch_bounds__(block_threads, 2) statistics_kernel(const T* x, Cut cut, NormState s) {
  __shared__ Two shared[sums_of_block<V, Two>];
  const RowRange range(cut, V);
  LongSum<V> sum, squares;
  if (range.active) {
    float pivot[V];
    load<V>(x + range.begin * cut.channels + range.channel, pivot);
    int groups = 0;
    over_rows<rows_at_once<V>>(range, cut, [&]<int rows>(std::int64_t r) {
      float v[rows][V];
#pragma unroll
      for (int u = 0; u < rows; ++u) load<V>(x + (r + u * cut.ty) * cut.channels + range.channel, v[u]);
#pragma unroll
      for (int u = 0; u < rows; ++u) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const float d = v[u][k] - pivot[k];
          sum.add(k, d);
          squares.add(k, d * d);
        }
      }
      if (++groups % groups_in_float == 0) sum.flush(), squares.flush();
    });
    sum.flush(), squares.flush();
  }
  const double here = static_cast<double>(range.end - range.begin);
  const Two total = sum_over_block<V>(
      [&](int k) {
        return Two{sum.sum()[k], squares.sum()[k]};
      },
      cut, shared, range.thread);
  const TileChannel channel(cut, V, range.thread);
  if (channel.writes) {
    const double pivot = static_cast<double>(as_float(x[range.begin * cut.channels + channel.number]));
    s.partials[place_of(static_cast<int>(blockIdx.y), cut.channels, channel.number)] =
        moments_of(here, pivot, total.first, total.second);
  }
  if (!is_last(s.finished)) return;
  const auto partial = [&](int p) { return s.partials[place_of(p, cut.channels, channel.number)]; };

  const double rows = static_cast<double>(cut.rows);
  Two all;
  double pivot = 0;
  if (channel.exists) {
    pivot = s.partials[channel.number].x;
    over_parts(cut.parts, channel.height, channel.heights, partial, [&](int p, const double2& part) {
      const std::int64_t first = static_cast<std::int64_t>(p) * cut.rows_each;
      add_moments(static_cast<double>(min_of(cut.rows_each, cut.rows - first)), pivot, part, all.first,
                  all.second);
    });
  }
  all = sum_over_heights(all, channel.columns, channel.heights, shared, range.thread);
  if (!channel.writes) return;
  const double2 moments = moments_of(rows, pivot, all.first, all.second);
  set_statistics(s, channel.number, rows, moments.x, moments.y);
}

__global__ void constants_kernel(int channels, NormState s) {
  for (std::int64_t i = thread_number(); i < channels; i += thread_count()) {
    const int c = static_cast<int>(i);
    set_constants(s, c, static_cast<double>(s.running_mean[c]), static_cast<double>(s.running_variance[c]));
  }
}

/// `columns`: y is columns of a wider array (`stride`), and there is no residual.
template <class T, int V, bool columns>
__global__ void __launch_bounds__(block_threads)
    normalize_kernel(const T* x, const T* residual, T* y, std::int64_t stride, bool relu, Cut cut,
                     NormState s) {
  const RowRange range(cut, V);
  if (!range.active) return;
  const NormConstants<V> k(s, range.channel);
  over_rows<4>(range, cut, [&]<int rows>(std::int64_t r) {
    float v[rows][V], more[rows][V];
    const std::int64_t first = r * cut.channels + range.channel, next = std::int64_t{cut.ty} * cut.channels;
#pragma unroll
    for (int u = 0; u < rows; ++u) load<V>(x + first + u * next, v[u]);
    if (!columns && residual != nullptr) {
#pragma unroll
      for (int u = 0; u < rows; ++u) load<V>(residual + first + u * next, more[u]);
    }
#pragma unroll
    for (int u = 0; u < rows; ++u) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        v[u][i] = k.normalized(v[u][i], i);
        if (!columns && residual != nullptr) v[u][i] += more[u][i];
        if (relu) v[u][i] = maths::relu(v[u][i]);
      }
      store<V>(y + (columns ? (r + u * cut.ty) * stride + range.channel : first + u * next), v[u]);
    }
  });
}

// ---- backward

/// The gradients behind the ReLU, and what they are multiplied with, of `rows` rows from `r` on. `columns`:
/// there is one gradient, columns of a wider array, and it is not written to `masked`.
template <int rows, bool columns, class T, int V>
__device__ __forceinline__ void load_gradients(const NormGradient& g, const NormConstants<V>& k,
                                               const Cut& cut, std::int64_t r, int channel,
                                               float (&v)[rows][V], float (&d)[rows][V]) {
  const std::int64_t first = r * cut.channels + channel, next = std::int64_t{cut.ty} * cut.channels;
#pragma unroll
  for (int u = 0; u < rows; ++u)
    load<V>(static_cast<const T*>(g.gradients.at[0]) +
                (columns ? (r + u * cut.ty) * g.stride + channel : first + u * next),
            v[u]);
#pragma unroll
  for (int u = 0; u < rows; ++u) load<V>(static_cast<const T*>(g.x) + first + u * next, d[u]);
  for (int t = 1; !columns && t < g.gradients.count; ++t) {
#pragma unroll
    for (int u = 0; u < rows; ++u) {
      float more[V];
      load<V>(static_cast<const T*>(g.gradients.at[t]) + first + u * next, more);
#pragma unroll
      for (int i = 0; i < V; ++i) v[u][i] += more[i];
    }
  }
#pragma unroll
  for (int u = 0; u < rows; ++u) {
#pragma unroll
    for (int i = 0; i < V; ++i) d[u][i] -= k.mean[i];
  }
  if (!columns && g.masked != nullptr) {
    if (g.relu) {
#pragma unroll
      for (int u = 0; u < rows; ++u) {
        float y[V];
        load<V>(static_cast<const T*>(g.y) + first + u * next, y);
#pragma unroll
        for (int i = 0; i < V; ++i) v[u][i] = maths::where_positive(y[i], v[u][i]);
      }
    }
#pragma unroll
    for (int u = 0; u < rows; ++u) {
      store<V>(static_cast<T*>(g.masked) + first + u * next, v[u]);
#pragma unroll
      for (int i = 0; i < V; ++i) v[u][i] = rounded<T>(v[u][i]);
    }
  } else if (g.relu) {
#pragma unroll
    for (int u = 0; u < rows; ++u) {
#pragma unroll
      for (int i = 0; i < V; ++i) v[u][i] = maths::where_positive(d[u][i] * k.scale[i] + k.bias[i], v[u][i]);
    }
  }
}

template <class T, int V, bool columns>
__global__ void __launch_bounds__(block_threads, 2)
    gradient_sums_kernel(NormGradient g, Cut cut, NormState s) {
  __shared__ Two shared[sums_of_block<V, Two>];
  const RowRange range(cut, V);
  LongSum<V> sum, products;
  if (range.active) {
    const NormConstants<V> k(s, range.channel);
    int groups = 0;
    over_rows<rows_at_once<V> / 2>(range, cut, [&]<int rows>(std::int64_t r) {
      float v[rows][V], d[rows][V];
      load_gradients<rows, columns, T, V>(g, k, cut, r, range.channel, v, d);
#pragma unroll
      for (int u = 0; u < rows; ++u) {
#pragma unroll
        for (int i = 0; i < V; ++i) sum.add(i, v[u][i]), products.add(i, v[u][i] * d[u][i]);
      }
      if (++groups % groups_in_float == 0) sum.flush(), products.flush();
    });
    sum.flush(), products.flush();
  }
  const TileChannel channel(cut, V, range.thread);
  Two all;
  if (!sum_over_tile(sum, products, cut, channel, range.thread, shared, s.partials, s.finished, all)) return;
  set_gradients(s, channel.number, static_cast<double>(cut.rows), all.first, all.second);
}

template <class T, int V, bool columns>
__global__ void __launch_bounds__(block_threads) gradient_kernel(NormGradient g, Cut cut, NormState s) {
  const RowRange range(cut, V);
  if (!range.active) return;
  const T* gradient = static_cast<const T*>(!columns && g.masked != nullptr ? g.masked : g.gradients.at[0]);
  const T* x = static_cast<const T*>(g.x);
  const bool relu = g.relu && g.masked == nullptr;
  const NormConstants<V> k(s, range.channel);
  float mean[V], slope[V];
  load<V>(s.gradient_mean + range.channel, mean);
  load<V>(s.slope + range.channel, slope);
  over_rows<rows_at_once<V> / 2>(range, cut, [&]<int rows>(std::int64_t r) {
    float v[rows][V], d[rows][V];
    const std::int64_t first = r * cut.channels + range.channel, next = std::int64_t{cut.ty} * cut.channels;
#pragma unroll
    for (int u = 0; u < rows; ++u)
      load<V>(gradient + (columns ? (r + u * cut.ty) * g.stride + range.channel : first + u * next), v[u]);
#pragma unroll
    for (int u = 0; u < rows; ++u) load<V>(x + first + u * next, d[u]);
#pragma unroll
    for (int u = 0; u < rows; ++u) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        d[u][i] -= k.mean[i];
        if (relu) v[u][i] = maths::where_positive(d[u][i] * k.scale[i] + k.bias[i], v[u][i]);
        v[u][i] = (v[u][i] - mean[i]) * k.scale[i] - d[u][i] * slope[i];
      }
      store<V>(static_cast<T*>(g.dx) + first + u * next, v[u]);
    }
  });
}

/// Calls body<T, V>().
template <class Body>
cudaError_t launch(DataType type, const Cut& cut, const Body& body) {
  return with_type(type, [&]<class T>(T) {
    if constexpr (pack_of<T> == 8)
      if (cut.pack == 8) return body.template operator()<T, 8>();
    if (cut.pack == 4)
      body.template operator()<T, 4>();
    else
      body.template operator()<T, 1>();
  });
}

dim3 grid(const Cut& cut) {
  return {static_cast<unsigned>(cut.tiles), static_cast<unsigned>(cut.parts), 1};
}
dim3 threads(const Cut& cut) {
  return {static_cast<unsigned>(cut.tx), static_cast<unsigned>(cut.ty), 1};
}

/// As launch(), body<T, V, columns>(), where rows of the output are `stride` values apart.
template <class Body>
cudaError_t launch(DataType type, const Cut& cut, std::int64_t stride, const Body& body) {
  return launch(type, cut, [&]<class T, int V>() {
    if (stride == cut.channels)
      body.template operator()<T, V, false>();
    else
      body.template operator()<T, V, true>();
  });
}

/// More parts with fewer rows each, for passes without sums.
Cut finer(Cut cut) {
  const std::int64_t max_parts = 2048 / cut.tiles, min_rows = 4 * cut.ty;
  std::int64_t parts = (cut.rows + min_rows - 1) / min_rows;
  parts = parts < 1 ? 1 : (parts < max_parts ? parts : (max_parts < 1 ? 1 : max_parts));
  cut.rows_each = (cut.rows + parts - 1) / parts;
  cut.parts = static_cast<int>((cut.rows + cut.rows_each - 1) / cut.rows_each);
  return cut;
}

}  // namespace

cudaError_t launch_norm_statistics(DataType type, const void* x, const Cut& cut, const NormState& state,
                                   cudaStream_t stream) {
  return launch(type, cut, [&]<class T, int V>() {
    LPSGD_LAUNCH((statistics_kernel<T, V>), grid(cut), threads(cut), stream)
    (static_cast<const T*>(x), cut, state);
  });
}

cudaError_t launch_norm_constants(const Cut& cut, const NormState& state, cudaStream_t stream) {
  LPSGD_LAUNCH(constants_kernel, blocks_for(cut.channels), block_threads, stream)(cut.channels, state);
  return cudaGetLastError();
}

cudaError_t launch_normalize(DataType type, const void* x, const void* residual, void* y, std::int64_t stride,
                             bool relu, const Cut& cut, const NormState& state, cudaStream_t stream) {
  const Cut fine = finer(cut);
  return launch(type, fine, stride, [&]<class T, int V, bool columns>() {
    LPSGD_LAUNCH((normalize_kernel<T, V, columns>), grid(fine), threads(fine), stream)
    (static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<T*>(y), stride, relu, fine,
     state);
  });
}

cudaError_t launch_norm_gradient_sums(DataType type, const NormGradient& g, const Cut& cut,
                                      const NormState& state, cudaStream_t stream) {
  return launch(type, cut, g.stride, [&]<class T, int V, bool columns>() {
    LPSGD_LAUNCH((gradient_sums_kernel<T, V, columns>), grid(cut), threads(cut), stream)(g, cut, state);
  });
}

cudaError_t launch_norm_gradient(DataType type, const NormGradient& g, const Cut& cut, const NormState& state,
                                 cudaStream_t stream) {
  const Cut fine = finer(cut);
  return launch(type, fine, g.stride, [&]<class T, int V, bool columns>() {
    LPSGD_LAUNCH((gradient_kernel<T, V, columns>), grid(fine), threads(fine), stream)(g, fine, state);
  });
}

}  // namespace lpsgd::cuda
