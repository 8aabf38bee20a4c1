// Attention but for its matrix products: rows of all heads to a matrix for each head and back, and the
// softmax of scores with its gradient. A row of scores is a warp's, which holds it in registers; rows of more
// than 1024 are a block's, which reads them again from cache.
//
// Memory moved per value of b bytes:
//   split, join   2 b, in loads and stores of 16 bytes where heads' widths and addresses allow
// and per score, in loads and stores of four values. Scores of keys that a query does not see are not read:
//   weights       4 (score) + b
//   gradient      8 (score, weight's gradient) + 2 b
// A float32 matrix is written over what it is computed from.
#include "nn/cuda/row_team_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

using maths::One;

/// A sample and one of its heads.
struct Pair {
  std::int64_t sample;
  int head;
  __device__ Pair(const AttentionShape& s, unsigned number)
      : sample(number / static_cast<unsigned>(s.heads)),
        head(static_cast<int>(number % static_cast<unsigned>(s.heads))) {}
  /// The pair's first value among rows (batch, frames).
  __device__ std::int64_t first(const AttentionShape& s, std::int64_t stride) const {
    return sample * s.frames * stride + static_cast<std::int64_t>(head) * s.width;
  }
};

__device__ __forceinline__ int length_of(const AttentionShape& s, const std::int32_t* lengths,
                                         std::int64_t sample) {
  const std::int32_t length = lengths[sample];
  return length < s.frames ? length : s.frames;
}

/// A member of the block's copy. The compiler would put the copies on the stack to index them by blockIdx,
/// and would not know that the pointers of a whole copy are global memory's.
template <class M>
__device__ __forceinline__ M of_block(const HeadCopies& copies, M HeadCopy::*member) {
  static_assert(max_head_copies == 4);
  return blockIdx.y == 0   ? copies.at[0].*member
         : blockIdx.y == 1 ? copies.at[1].*member
         : blockIdx.y == 2 ? copies.at[2].*member
                           : copies.at[3].*member;
}

template <class T, int V>
__global__ void split_heads_kernel(AttentionShape s, HeadRange range, const HeadCopies copies,
                                   const std::int32_t* lengths) {
  const T* const from = static_cast<const T*>(of_block(copies, &HeadCopy::from));
  T* const to = static_cast<T*>(of_block(copies, &HeadCopy::to));
  const std::int64_t stride = of_block(copies, &HeadCopy::stride);
  const unsigned packs = static_cast<unsigned>(s.padded_width / V);
  const unsigned of_pair = static_cast<unsigned>(s.padded_frames) * packs;
  const unsigned all = range.count * of_pair, step = gridDim.x * blockDim.x;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const Pair pair(s, range.first + i / of_pair);
    const int t = static_cast<int>(i % of_pair / packs), c = static_cast<int>(i % packs) * V;
    float v[V] = {};
    if (c < s.width && t < length_of(s, lengths, pair.sample))
      load<V>(from + pair.first(s, stride) + t * stride + c, v);
    store<V>(to + static_cast<std::int64_t>(i) * V, v);
  }
}

template <class T, int V>
__global__ void join_heads_kernel(AttentionShape s, HeadRange range, const HeadCopies copies) {
  const T* const from = static_cast<const T*>(of_block(copies, &HeadCopy::from));
  T* const to = static_cast<T*>(of_block(copies, &HeadCopy::to));
  const std::int64_t stride = of_block(copies, &HeadCopy::stride);
  const unsigned packs = static_cast<unsigned>(s.width / V);
  const unsigned of_pair = static_cast<unsigned>(s.frames) * packs;
  const unsigned all = range.count * of_pair, step = gridDim.x * blockDim.x;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const unsigned number = i / of_pair;
    const Pair pair(s, range.first + number);
    const int t = static_cast<int>(i % of_pair / packs), c = static_cast<int>(i % packs) * V;
    float v[V];
    const std::int64_t row = static_cast<std::int64_t>(number) * s.padded_frames + t;
    load<V>(from + row * s.padded_width + c, v);
    store<V>(to + pair.first(s, stride) + t * stride + c, v);
  }
}

LPSGD_HD std::int64_t rows_of(const AttentionShape& s, HeadRange range) {
  return static_cast<std::int64_t>(range.count) * s.padded_frames;
}

/// A row of scores: of one query. It sees the first `keys` keys; a query behind a sequence's end, or in the
/// padding, sees none.
struct Query {
  std::int64_t log_sum;  // its index
  int keys;
  __device__ Query(const AttentionShape& s, HeadRange range, const std::int32_t* lengths, unsigned row) {
    const unsigned frames = static_cast<unsigned>(s.padded_frames);
    const unsigned number = range.first + row / frames;
    const int t = static_cast<int>(row % frames), length = length_of(s, lengths, Pair(s, number).sample);
    keys = t >= length ? 0 : s.causal ? t + 1 : length;
    log_sum = static_cast<std::int64_t>(number) * s.frames + t;
  }
};

constexpr int pack = 4;  // scores that a thread loads at once, and draws of a Philox block

/// Which weights of a query are dropped.
class QueryDropout {
 public:
  __device__ QueryDropout(const AttentionShape& s, HeadRange range, const WeightDropout& dropout,
                          unsigned row)
      : draws_(dropout.draws) {
    const unsigned frames = static_cast<unsigned>(s.padded_frames);
    const Pair pair(s, range.first + row / frames);
    first_block_ = DropoutDraws::first_block(pair.head, row % frames, s.frames);
    position_ = draws_.first + dropout.pass->first + static_cast<unsigned>(pair.sample);
    step_ = dropout.pass->step;
  }
  /// Bit k: whether weight c + k is kept.
  __device__ __forceinline__ unsigned kept(int c) const {
    const Philox4x32 draw = draws_.draw(first_block_ + static_cast<unsigned>(c) / pack, position_, step_);
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < pack; ++k) bits |= static_cast<unsigned>(draw.x[k] >= draws_.limit) << k;
    return bits;
  }
  __device__ __forceinline__ float drop(unsigned kept, int k, float v) const {
    return kept >> k & 1u ? v * draws_.scale : 0.0f;
  }

 private:
  DropoutDraws draws_;
  unsigned first_block_, position_, step_;
};
/// Where nothing is dropped.
struct NoDropout {
  __device__ NoDropout(const AttentionShape&, HeadRange, const WeightDropout&, unsigned) {}
  __device__ __forceinline__ unsigned kept(int) const { return 0; }
  __device__ __forceinline__ float drop(unsigned, int, float v) const { return v; }
};

// Rows come in multiples of 8, which the teams of a block divide. So over_team_rows() gives rows that exist.
static_assert(8 % (block_threads / 32) == 0);

/// Zeros in the places of keys that the query does not see, after the last pack with one that it sees.
template <int team, int N, class T>
__device__ __forceinline__ void clear_unseen(T* row, int keys, int frames) {
  over_packs<team, pack, N>(frames, [&](int, int c) {
    const float none[pack] = {};
    if (c >= keys) store<pack>(row + c, none);
  });
}

template <class T, int team, int N, class Dropout>
__global__ void __launch_bounds__(block_threads)
    attention_weights_kernel(AttentionShape s, HeadRange range, const WeightDropout which,
                             const std::int32_t* lengths, float scale, const float* scores, T* weights,
                             float* log_sums) {
  over_team_rows<team>(rows_of(s, range), [&](std::int64_t row, bool) {
    const Query query(s, range, lengths, static_cast<unsigned>(row));
    const Dropout dropout(s, range, which, static_cast<unsigned>(row));
    const int keys = query.keys;
    RowPacks<team, pack, N, float> packs(scores + row * s.padded_frames, keys);
    float max = -INFINITY;
    over_packs<team, pack, N>(keys, [&](int u, int c) {
      const auto& v = packs.at(u, c);
#pragma unroll
      for (int k = 0; k < pack; ++k)
        if (c + k < keys) max = fmaxf(max, v[k]);
    });
    max = over_team<team>(max, [](float a, float b) { return fmaxf(a, b); });
    const auto weight = [&](float v, bool seen) { return seen ? maths::exp<One>((v - max) * scale) : 0.0f; };
    float sum = 0;
    over_packs<team, pack, N>(keys, [&](int u, int c) {
      auto& v = packs.at(u, c);
#pragma unroll
      for (int k = 0; k < pack; ++k) sum += v[k] = weight(v[k], c + k < keys);
    });
    sum = sum_over_team<team>(sum);
    const float inverse = 1.0f / sum;
    T* const to = weights + row * s.padded_frames;
    over_packs<team, pack, N>(keys, [&](int u, int c) {
      auto& v = packs.at(u, c);
      const unsigned kept = dropout.kept(c);
#pragma unroll
      for (int k = 0; k < pack; ++k)
        v[k] = dropout.drop(kept, k, (N > 0 ? v[k] : weight(v[k], c + k < keys)) * inverse);
      store<pack>(to + c, v);
    });
    clear_unseen<team, N>(to, keys, s.padded_frames);
    if (log_sums != nullptr && keys > 0 && threadIdx.x % team == 0)
      log_sums[query.log_sum] = max * scale + logf(sum);
  });
}

/// p = exp(scale score - log_sum), and the score's gradient is scale p (g - the sum of p g over the row),
/// where g is 0 for a weight that is dropped.
template <class T, int team, int N, class Dropout>
__global__ void __launch_bounds__(block_threads)
    attention_gradient_kernel(AttentionShape s, HeadRange range, const WeightDropout which,
                              const std::int32_t* lengths, float scale, const float* scores,
                              const float* weight_gradients, const float* log_sums, T* weights,
                              T* score_gradients) {
  over_team_rows<team>(rows_of(s, range), [&](std::int64_t row, bool) {
    const Query query(s, range, lengths, static_cast<unsigned>(row));
    const Dropout dropout(s, range, which, static_cast<unsigned>(row));
    const int keys = query.keys;
    const std::int64_t first = row * s.padded_frames;
    RowPacks<team, pack, N, float> packs(scores + first, keys), gradients(weight_gradients + first, keys);
    const float log_sum = keys > 0 ? log_sums[query.log_sum] : 0.0f;
    const auto weight = [&](float v, bool seen) {
      return seen ? maths::exp<One>(v * scale - log_sum) : 0.0f;
    };
    static_assert(N * pack <= 32);
    unsigned all_kept = 0;  // of all packs, where they stay in registers
    float sum = 0;
    over_packs<team, pack, N>(keys, [&](int u, int c) {
      auto& v = packs.at(u, c);
      auto& g = gradients.at(u, c);
      const unsigned kept = dropout.kept(c);
      all_kept |= kept << u * pack;
#pragma unroll
      for (int k = 0; k < pack; ++k) {
        g[k] = dropout.drop(kept, k, g[k]);
        sum += (v[k] = weight(v[k], c + k < keys)) * g[k];
      }
    });
    sum = sum_over_team<team>(sum);
    over_packs<team, pack, N>(keys, [&](int u, int c) {
      auto& v = packs.at(u, c);
      auto& g = gradients.at(u, c);
      const unsigned kept = N > 0 ? all_kept >> u * pack : dropout.kept(c);
#pragma unroll
      for (int k = 0; k < pack; ++k) {
        if (N == 0) {
          v[k] = weight(v[k], c + k < keys);
          g[k] = dropout.drop(kept, k, g[k]);
        }
        g[k] = v[k] * (g[k] - sum) * scale;
        v[k] = dropout.drop(kept, k, v[k]);
      }
      store<pack>(weights + first + c, v);
      store<pack>(score_gradients + first + c, g);
    });
    clear_unseen<team, N>(weights + first, keys, s.padded_frames);
    clear_unseen<team, N>(score_gradients + first, keys, s.padded_frames);
  });
}

/// Calls body<V>() with the values that can be copied at once.
template <class T, class Body>
void with_pack(const AttentionShape& s, const HeadCopies& copies, bool from_rows, const Body& body) {
  bool packed = s.width % pack_of<T> == 0;
  for (int i = 0; i < copies.count; ++i) {
    const HeadCopy& copy = copies.at[i];
    packed = packed && takes_packs(pack_of<T>, sizeof(T), from_rows ? copy.from : copy.to, copy.stride);
  }
  if (packed)
    body.template operator()<pack_of<T>>();
  else
    body.template operator()<1>();
}

template <class Dropout, class Body>
void with_team(int scores, const Body& body) {
  if (scores <= 32 * pack)
    body.template operator()<32, 1, Dropout>();
  else if (scores <= 64 * pack)
    body.template operator()<32, 2, Dropout>();
  else if (scores <= 128 * pack)
    body.template operator()<32, 4, Dropout>();
  else if (scores <= 256 * pack)
    body.template operator()<32, 8, Dropout>();
  else
    body.template operator()<block_threads, 0, Dropout>();
}
/// Calls body<team, N, Dropout>() for rows of so many scores.
template <class Body>
void with_team(const WeightDropout& dropout, int scores, const Body& body) {
  dropout.pass != nullptr ? with_team<QueryDropout>(scores, body) : with_team<NoDropout>(scores, body);
}

float scale_of(const AttentionShape& s) {
  return 1.0f / sqrtf(static_cast<float>(s.width));
}

}  // namespace

cudaError_t launch_split_heads(DataType type, const AttentionShape& s, HeadRange range,
                               const HeadCopies& copies, const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_pack<T>(s, copies, true, [&]<int V>() {
      const std::int64_t packs = rows_of(s, range) * (s.padded_width / V);
      const dim3 blocks(blocks_for(packs), static_cast<unsigned>(copies.count));
      LPSGD_LAUNCH((split_heads_kernel<T, V>), blocks, block_threads, stream)(s, range, copies, lengths);
    });
  });
}

cudaError_t launch_join_heads(DataType type, const AttentionShape& s, HeadRange range,
                              const HeadCopies& copies, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_pack<T>(s, copies, false, [&]<int V>() {
      const std::int64_t packs = std::int64_t{range.count} * s.frames * (s.width / V);
      const dim3 blocks(blocks_for(packs), static_cast<unsigned>(copies.count));
      LPSGD_LAUNCH((join_heads_kernel<T, V>), blocks, block_threads, stream)(s, range, copies);
    });
  });
}

cudaError_t launch_attention_weights(DataType type, const AttentionShape& s, HeadRange range,
                                     const WeightDropout& dropout, const std::int32_t* lengths,
                                     const float* scores, void* weights, float* log_sums,
                                     cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_team(dropout, s.padded_frames, [&]<int team, int N, class Dropout>() {
      LPSGD_LAUNCH((attention_weights_kernel<T, team, N, Dropout>), blocks_for_rows<team>(rows_of(s, range)),
                   block_threads, stream)
      (s, range, dropout, lengths, scale_of(s), scores, static_cast<T*>(weights), log_sums);
    });
  });
}

cudaError_t launch_attention_gradient(DataType type, const AttentionShape& s, HeadRange range,
                                      const WeightDropout& dropout, const std::int32_t* lengths,
                                      const float* scores, const float* weight_gradients,
                                      const float* log_sums, void* weights, void* score_gradients,
                                      cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    with_team(dropout, s.padded_frames, [&]<int team, int N, class Dropout>() {
      LPSGD_LAUNCH((attention_gradient_kernel<T, team, N, Dropout>), blocks_for_rows<team>(rows_of(s, range)),
                   block_threads, stream)
      (s, range, dropout, lengths, scale_of(s), scores, weight_gradients, log_sums, static_cast<T*>(weights),
       static_cast<T*>(score_gradients));
    });
  });
}

}  // namespace lpsgd::cuda
