// How kernels sum over the rows of an array that a Cut divides (nn/cuda/kernels.h). The threads of a block
// sum their rows and combine them in shared memory. Blocks write partial sums to memory, and the last block
// of a tile combines these in a fixed order: a thread for each channel and every so many parts, so that the
// time is that of a few loads.
#pragma once

#include <cstdint>

#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {

__device__ __forceinline__ std::int64_t min_of(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

/// The channels and rows of a thread.
struct RowRange {
  int channel;  // the first one
  int thread;   // the number of the thread in its block
  std::int64_t begin, end;
  bool active;
  __device__ explicit RowRange(const Cut& cut, int pack)
      : channel((static_cast<int>(blockIdx.x) * cut.tx + static_cast<int>(threadIdx.x)) * pack),
        thread(static_cast<int>(threadIdx.y) * cut.tx + static_cast<int>(threadIdx.x)),
        begin(static_cast<std::int64_t>(blockIdx.y) * cut.rows_each),
        end(min_of(begin + cut.rows_each, cut.rows)),
        active(channel < cut.channels) {}
};

/// The channel of the tile that a thread has where threads take one channel each.
struct TileChannel {
  int columns, heights;  // channels of the tile; threads that have the same
  int number, height;    // among all channels; which of those threads
  bool exists, writes;   // `writes`: the first of them
  __device__ TileChannel(const Cut& cut, int pack, int thread)
      : columns(cut.tx * pack),
        heights(block_threads / columns),
        number(static_cast<int>(blockIdx.x) * columns + thread % columns),
        height(thread / columns),
        exists(number < cut.channels),
        writes(exists && height == 0) {}
};

/// Calls body<U>(r) for rows r, r + ty, ... of this thread, U at a time, and body<1>(r) for the rest. A body
/// that loads all its rows before it uses them has as many loads on their way.
template <int U, class Body>
__device__ __forceinline__ void over_rows(const RowRange& range, const Cut& cut, const Body& body) {
  std::int64_t r = range.begin + threadIdx.y;
  for (; r + (U - 1) * cut.ty < range.end; r += U * cut.ty) body.template operator()<U>(r);
  for (; r < range.end; r += cut.ty) body.template operator()<1>(r);
}

/// Groups of rows that a thread adds in float32 before it adds their sum in double.
constexpr int groups_in_float = 4;

/// Sums in double of what a thread adds in float32.
template <int V>
class LongSum {
 public:
  __device__ void add(int k, float v) { few_[k] += v; }
  __device__ void flush() {
#pragma unroll
    for (int k = 0; k < V; ++k) sum_[k] += static_cast<double>(few_[k]), few_[k] = 0;
  }
  __device__ const double* sum() const { return sum_; }

 private:
  float few_[V] = {};
  double sum_[V] = {};
};

/// Two sums at once, so that threads wait for each other once for both.
struct alignas(16) Two {
  double first = 0, second = 0;
  __device__ __forceinline__ Two& operator+=(const Two& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
};

__device__ __forceinline__ Two from_lane(const Two& value, int distance) {
  constexpr unsigned all = 0xffffffffu;
  return {__shfl_xor_sync(all, value.first, distance), __shfl_xor_sync(all, value.second, distance)};
}
/// Sums over the eight lanes whose numbers have the same remainder by four, each with values of the same n
/// columns: values[0] becomes the sum of a column. At each distance a lane hands over half of its columns and
/// keeps the other half, the upper one if its number has the bit of the distance. All lanes of the warp call
/// it.
template <int n>
__device__ __forceinline__ void share_over_lanes(Two (&values)[n]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int left = n;
#pragma unroll
  for (int distance = 16; distance >= 4; distance /= 2) {
    if (left == 1) {
      values[0] += from_lane(values[0], distance);
      continue;
    }
    const bool upper = (lane & distance) != 0;
    left /= 2;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      if (i >= left) break;
      const Two low = values[i], high = values[i + left];
      values[i] = from_lane(upper ? low : high, distance);
      values[i] += upper ? high : low;
    }
  }
}

/// The sum of value[c] over the `heights` threads c, c + columns, ... of a block, for thread c < columns.
/// `shared` holds a value for each thread. All threads of the block call it.
template <class S>
__device__ __forceinline__ S sum_over_heights(S value, int columns, int heights, S* shared, int thread) {
  __syncthreads();
  shared[thread] = value;
  __syncthreads();
  S total{};
  if (thread < columns)
    for (int h = 0; h < heights; ++h) total += shared[h * columns + thread];
  return total;
}

/// Values of shared memory for sum_over_block(). A row has all threads' values of one of their V channels.
/// The next row begins the V-th part of all banks further: so neither those that write, whose values lie side
/// by side, nor those that read, one value of each row, use the same banks.
template <int V, class S>
constexpr int sums_row = block_threads + (128 / int{sizeof(S)} >= V ? 128 / int{sizeof(S)} / V : 1);
template <int V, class S>
constexpr int sums_of_block = sums_row<V, S> * V;

/// The sum of value(k) over a block's rows of threads, which each have V channels' values: thread t < tx * V
/// returns that of the tile's channel t. All threads of the block call it.
template <int V, class S, class Value>
__device__ __forceinline__ S sum_over_block(const Value& value, const Cut& cut, S* shared, int thread) {
  const int columns = cut.tx * V, heights = block_threads / columns;
  const int column = thread % columns;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < V; ++k) shared[k * sums_row<V, S> + thread] = value(k);
  __syncthreads();
  S sum{};
#pragma unroll 4
  for (int y = thread / columns; y < cut.ty; y += heights)
    sum += shared[column % V * sums_row<V, S> + y * cut.tx + column / V];
  return sum_over_heights(sum, columns, heights, shared, thread);
}

/// Calls body(p, load(p)) for the parts `first`, `first` + `heights`, ... Many loads are on their way at
/// once.
template <class Load, class Body>
__device__ __forceinline__ void over_parts(int parts, int first, int heights, const Load& load,
                                           const Body& body) {
  constexpr int loads = 8;
  int p = first;
  for (; p + (loads - 1) * heights < parts; p += loads * heights) {
    decltype(load(0)) v[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) v[i] = load(p + i * heights);
#pragma unroll
    for (int i = 0; i < loads; ++i) body(p + i * heights, v[i]);
  }
  for (; p < parts; p += heights) body(p, load(p));
}

/// A channel's place among the partial results of part p.
__device__ __forceinline__ std::int64_t place_of(int p, int channels, int channel) {
  return static_cast<std::int64_t>(p) * channels + channel;
}

/// Whether this block is the last one of its tile to call this. If so, the writes of the others are visible.
__device__ inline bool is_last(unsigned* finished) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(&finished[blockIdx.x], 1u) == gridDim.y - 1;
    if (last) finished[blockIdx.x] = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

/// Two sums of each channel over all rows, of the threads' own sums. The last block of a tile returns true on
/// the threads that have a channel to write, with that channel's sums in `all`. `partials` holds
/// parts * channels values, `shared` sums_of_block<V, Two>. All threads of the block call it.
template <int V>
__device__ __forceinline__ bool sum_over_tile(const LongSum<V>& first, const LongSum<V>& second,
                                              const Cut& cut, const TileChannel& channel, int thread,
                                              Two* shared, double2* partials, unsigned* finished, Two& all) {
  const Two here = sum_over_block<V>(
      [&](int k) {
        return Two{first.sum()[k], second.sum()[k]};
      },
      cut, shared, thread);
  if (channel.writes)
    partials[place_of(static_cast<int>(blockIdx.y), cut.channels, channel.number)] =
        make_double2(here.first, here.second);
  if (!is_last(finished)) return false;
  all = {};
  if (channel.exists)
    over_parts(
        cut.parts, channel.height, channel.heights,
        [&](int p) { return partials[place_of(p, cut.channels, channel.number)]; },
        [&](int, const double2& part) {
          all += Two{part.x, part.y};
        });
  all = sum_over_heights(all, channel.columns, channel.heights, shared, thread);
  return channel.writes;
}

}  // namespace lpsgd::cuda
