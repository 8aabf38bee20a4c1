// Batch normalisation over NHWC with the sum and the ReLU behind it. nn/cpu/batch_norm.cc does the same on
// the CPU.
//
// Statistics and gradient sums are sums over rows for each channel. A thread takes eight rows at a time.
// Moments are taken around the mean of the eight, and then combined (Chan, Golub and LeVeque 1979), so that a
// mean far from zero costs no precision.
//
// Memory moved per value of b bytes; normalize and gradient in loads and stores of 16 bytes where channels
// allow, statistics and gradient_sums of four values, of several rows at a time:
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

constexpr int unrolled = 8;

// ---- forward

template <class T, int V>
__global__ void __launch_bounds__(block_threads) statistics_kernel(const T* x, Cut cut, NormState s) {
  __shared__ double shared[block_threads * V];
  const RowRange range(cut, V);
  double mean[V] = {}, m2[V] = {}, count = 0;
  if (range.active) {
    for (std::int64_t r = range.begin + threadIdx.y; r < range.end; r += unrolled * cut.ty) {
      float v[unrolled][V], few_mean[V] = {}, few_m2[V] = {};
      int n = 0;
#pragma unroll
      for (int u = 0; u < unrolled; ++u) {
        if (r + u * cut.ty < range.end) {
          load<V>(x + (r + u * cut.ty) * cut.channels + range.channel, v[u]);
          ++n;
#pragma unroll
          for (int k = 0; k < V; ++k) few_mean[k] += v[u][k];
        }
      }
#pragma unroll
      for (int k = 0; k < V; ++k) few_mean[k] /= static_cast<float>(n);
#pragma unroll
      for (int u = 0; u < unrolled; ++u) {
        if (u < n) {
#pragma unroll
          for (int k = 0; k < V; ++k) {
            const float d = v[u][k] - few_mean[k];
            few_m2[k] += d * d;
          }
        }
      }
      const double share = n / (count + n);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const double delta = static_cast<double>(few_mean[k]) - mean[k];
        mean[k] += delta * share;
        m2[k] += static_cast<double>(few_m2[k]) + delta * delta * count * share;
      }
      count += n;
    }
  }
  // First the mean of the block, then the squares of differences from it.
  const double here = static_cast<double>(range.end - range.begin);
  double block_mean[V];
  for (int k = 0; k < V; ++k) block_mean[k] = count * mean[k] / here;
  sum_over_rows<V>(block_mean, cut, shared, range.thread);
  for (int k = 0; k < V; ++k) m2[k] += count * (mean[k] - block_mean[k]) * (mean[k] - block_mean[k]);
  sum_over_rows<V>(m2, cut, shared, range.thread);
  if (threadIdx.y == 0 && range.active)
    for (int k = 0; k < V; ++k)
      s.partials[static_cast<std::int64_t>(blockIdx.y) * cut.channels + range.channel + k] =
          make_double2(block_mean[k], m2[k]);
  if (!is_last(s.finished)) return;

  // Threads with the same threadIdx.y take every ty-th part.
  const double rows = static_cast<double>(cut.rows);
  const auto rows_of = [&](int p) {
    const std::int64_t first = static_cast<std::int64_t>(p) * cut.rows_each;
    return static_cast<double>(min_of(cut.rows_each, cut.rows - first));
  };
  double all_mean[V] = {}, all_m2[V] = {};
  if (range.active)
#pragma unroll 1
    for (int p = static_cast<int>(threadIdx.y); p < cut.parts; p += cut.ty)
      for (int k = 0; k < V; ++k)
        all_mean[k] +=
            rows_of(p) * s.partials[static_cast<std::int64_t>(p) * cut.channels + range.channel + k].x / rows;
  sum_over_rows<V>(all_mean, cut, shared, range.thread);
  if (range.active) {
#pragma unroll 1
    for (int p = static_cast<int>(threadIdx.y); p < cut.parts; p += cut.ty) {
      for (int k = 0; k < V; ++k) {
        const double2 part = s.partials[static_cast<std::int64_t>(p) * cut.channels + range.channel + k];
        all_m2[k] += part.y + rows_of(p) * (part.x - all_mean[k]) * (part.x - all_mean[k]);
      }
    }
  }
  sum_over_rows<V>(all_m2, cut, shared, range.thread);
  if (threadIdx.y != 0 || !range.active) return;
  for (int k = 0; k < V; ++k) set_statistics(s, range.channel + k, rows, all_mean[k], all_m2[k]);
}

__global__ void constants_kernel(int channels, NormState s) {
  for (std::int64_t i = thread_number(); i < channels; i += thread_count()) {
    const int c = static_cast<int>(i);
    set_constants(s, c, static_cast<double>(s.running_mean[c]), static_cast<double>(s.running_variance[c]));
  }
}

/// The constants of a thread's channels: y = (x - mean) * scale + bias.
template <int V>
struct Constants {
  float mean[V], scale[V], bias[V];
  __device__ Constants(const NormState& s, int channel) {
    load<V>(s.mean + channel, mean);
    load<V>(s.scale + channel, scale);
    load<V>(s.bias + channel, bias);
  }
};

template <class T, int V>
__global__ void __launch_bounds__(block_threads)
    normalize_kernel(const T* x, const T* residual, T* y, bool relu, Cut cut, NormState s) {
  const RowRange range(cut, V);
  if (!range.active) return;
  const Constants<V> k(s, range.channel);
#pragma unroll 4
  for (std::int64_t r = range.begin + threadIdx.y; r < range.end; r += cut.ty) {
    const std::int64_t at = r * cut.channels + range.channel;
    float v[V], more[V];
    load<V>(x + at, v);
    if (residual != nullptr) load<V>(residual + at, more);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      v[i] = (v[i] - k.mean[i]) * k.scale[i] + k.bias[i];
      if (residual != nullptr) v[i] += more[i];
      if (relu) v[i] = maths::relu(v[i]);
    }
    store<V>(y + at, v);
  }
}

// ---- backward

template <class T, int V>
__global__ void __launch_bounds__(block_threads, 2)
    gradient_sums_kernel(NormGradient g, Cut cut, NormState s) {
  __shared__ double shared[block_threads * V];
  const RowRange range(cut, V);
  const T* x = static_cast<const T*>(g.x);
  double sum_g[V] = {}, sum_gx[V] = {};
  if (range.active) {
    const Constants<V> k(s, range.channel);
    for (std::int64_t r = range.begin + threadIdx.y; r < range.end; r += unrolled * cut.ty) {
      float few_g[V] = {}, few_gx[V] = {};
#pragma unroll(V == 4 && sizeof(T) == 4 ? 2 : 4)
      for (int u = 0; u < unrolled; ++u) {
        if (r + u * cut.ty >= range.end) break;
        const std::int64_t at = (r + u * cut.ty) * cut.channels + range.channel;
        float v[V], d[V];
        load_sum<V, T>(g.gradients, at, v);
        load<V>(x + at, d);
        if (g.masked != nullptr) {
          if (g.relu) {
            float y[V];
            load<V>(static_cast<const T*>(g.y) + at, y);
#pragma unroll
            for (int i = 0; i < V; ++i) v[i] = maths::where_positive(y[i], v[i]);
          }
          store<V>(static_cast<T*>(g.masked) + at, v);
#pragma unroll
          for (int i = 0; i < V; ++i) v[i] = rounded<T>(v[i]);
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
          d[i] -= k.mean[i];
          if (g.relu && g.masked == nullptr)
            v[i] = maths::where_positive(d[i] * k.scale[i] + k.bias[i], v[i]);
          few_g[i] += v[i];
          few_gx[i] += v[i] * d[i];
        }
      }
#pragma unroll
      for (int i = 0; i < V; ++i) {
        sum_g[i] += static_cast<double>(few_g[i]);
        sum_gx[i] += static_cast<double>(few_gx[i]);
      }
    }
  }
  sum_over_rows<V>(sum_g, cut, shared, range.thread);
  sum_over_rows<V>(sum_gx, cut, shared, range.thread);
  if (threadIdx.y == 0 && range.active)
    for (int i = 0; i < V; ++i)
      s.partials[static_cast<std::int64_t>(blockIdx.y) * cut.channels + range.channel + i] =
          make_double2(sum_g[i], sum_gx[i]);
  if (!is_last(s.finished)) return;

  for (int i = 0; i < V; ++i) sum_g[i] = sum_gx[i] = 0;
  if (range.active) {
#pragma unroll 1
    for (int p = static_cast<int>(threadIdx.y); p < cut.parts; p += cut.ty) {
      for (int i = 0; i < V; ++i) {
        const double2 part = s.partials[static_cast<std::int64_t>(p) * cut.channels + range.channel + i];
        sum_g[i] += part.x;
        sum_gx[i] += part.y;
      }
    }
  }
  sum_over_rows<V>(sum_g, cut, shared, range.thread);
  sum_over_rows<V>(sum_gx, cut, shared, range.thread);
  if (threadIdx.y != 0 || !range.active) return;
  const double count = static_cast<double>(cut.rows);
  for (int i = 0; i < V; ++i) {
    const int c = range.channel + i;
    const double inverse = s.inverse[c], scale = static_cast<double>(s.weight[c]) * inverse;
    s.weight_gradient[c] = static_cast<float>(sum_gx[i] * inverse);
    s.bias_gradient[c] = static_cast<float>(sum_g[i]);
    s.gradient_mean[c] = static_cast<float>(sum_g[i] / count);
    s.slope[c] = static_cast<float>(scale * inverse * inverse * sum_gx[i] / count);
  }
}

template <class T, int V>
__global__ void __launch_bounds__(block_threads) gradient_kernel(NormGradient g, Cut cut, NormState s) {
  const RowRange range(cut, V);
  if (!range.active) return;
  const T* gradient = static_cast<const T*>(g.masked != nullptr ? g.masked : g.gradients.at[0]);
  const T* x = static_cast<const T*>(g.x);
  const bool relu = g.relu && g.masked == nullptr;
  const Constants<V> k(s, range.channel);
  float mean[V], slope[V];
  load<V>(s.gradient_mean + range.channel, mean);
  load<V>(s.slope + range.channel, slope);
#pragma unroll 4
  for (std::int64_t r = range.begin + threadIdx.y; r < range.end; r += cut.ty) {
    const std::int64_t at = r * cut.channels + range.channel;
    float v[V], d[V];
    load<V>(gradient + at, v);
    load<V>(x + at, d);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      d[i] -= k.mean[i];
      if (relu) v[i] = maths::where_positive(d[i] * k.scale[i] + k.bias[i], v[i]);
      v[i] = (v[i] - mean[i]) * k.scale[i] - d[i] * slope[i];
    }
    store<V>(static_cast<T*>(g.dx) + at, v);
  }
}

/// Calls body<T, V>(). `eights`: the cut may have packs of 8.
template <bool eights, class Body>
cudaError_t launch(DataType type, const Cut& cut, const Body& body) {
  return with_type(type, [&]<class T>(T) {
    if constexpr (eights && pack_of<T> == 8)
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

/// More parts with fewer rows each, and 16 bytes of channels a thread, for passes without sums.
Cut finer(Cut cut, DataType type) {
  if (type == DataType::bf16 && cut.channels % 8 == 0) {
    cut.pack = 8;
    while (cut.tx > 1 && cut.tx / 2 >= cut.channels / 8) cut.tx /= 2;
    cut.ty = block_threads / cut.tx;
    cut.tiles = (cut.channels / 8 + cut.tx - 1) / cut.tx;
  }
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
  return launch<false>(type, cut, [&]<class T, int V>() {
    LPSGD_LAUNCH((statistics_kernel<T, V>), grid(cut), threads(cut), stream)
    (static_cast<const T*>(x), cut, state);
  });
}

cudaError_t launch_norm_constants(const Cut& cut, const NormState& state, cudaStream_t stream) {
  LPSGD_LAUNCH(constants_kernel, blocks_for(cut.channels), block_threads, stream)(cut.channels, state);
  return cudaGetLastError();
}

cudaError_t launch_normalize(DataType type, const void* x, const void* residual, void* y, bool relu,
                             const Cut& cut, const NormState& state, cudaStream_t stream) {
  const Cut fine = finer(cut, type);
  return launch<true>(type, fine, [&]<class T, int V>() {
    LPSGD_LAUNCH((normalize_kernel<T, V>), grid(fine), threads(fine), stream)
    (static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<T*>(y), relu, fine, state);
  });
}

cudaError_t launch_norm_gradient_sums(DataType type, const NormGradient& g, const Cut& cut,
                                      const NormState& state, cudaStream_t stream) {
  return launch<false>(type, cut, [&]<class T, int V>() {
    LPSGD_LAUNCH((gradient_sums_kernel<T, V>), grid(cut), threads(cut), stream)(g, cut, state);
  });
}

cudaError_t launch_norm_gradient(DataType type, const NormGradient& g, const Cut& cut, const NormState& state,
                                 cudaStream_t stream) {
  const Cut fine = finer(cut, type);
  return launch<true>(type, fine, [&]<class T, int V>() {
    LPSGD_LAUNCH((gradient_kernel<T, V>), grid(fine), threads(fine), stream)(g, fine, state);
  });
}

}  // namespace lpsgd::cuda
