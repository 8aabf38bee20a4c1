// What the kernels of topk's buckets above shared_values share (topk_large.cu): pieces, which a block or
// a warp handles alone. Internal to quant/cuda.
#pragma once

#include "quant/cuda/topk_device.h"

namespace lpsgd::cuda {
namespace {

struct TopkPart {
  TopkBucket bucket;
  std::int64_t piece;  // of the batch
  std::int64_t from;   // its first value in the bucket
  int count;           // its values
  TopkState* state;    // nullptr: decoding

  __device__ std::int64_t first() const { return bucket.begin + from; }  // in the job
  __device__ std::int64_t pieces() const { return (bucket.m + piece_values - 1) / piece_values; }
  /// Its residual; nullptr: none.
  __device__ float* residual() const {
    return bucket.job->residual != nullptr ? bucket.job->residual + first() : nullptr;
  }
};

__device__ __forceinline__ TopkPart find_part(const TopkLaunch& launch, std::int64_t piece) {
  const Job& job = launch.jobs[find_job(launch, piece, [](const Job& one) { return one.pieces_before; })];
  const std::int64_t each = (job.bucket + piece_values - 1) / piece_values;
  const std::int64_t number = piece - job.pieces_before, bucket = number / each;
  TopkPart p;
  p.bucket = bucket_of(launch, job, bucket);
  p.piece = piece;
  p.from = number % each * piece_values;
  p.count = static_cast<int>(min_of(piece_values, p.bucket.m - p.from));
  p.state = launch.topk.states != nullptr ? launch.topk.states + job.large_before + bucket : nullptr;
  return p;
}

/// Calls body(part) for the block's pieces, which follow each other, and last(part, pieces) after the last
/// one of a bucket, with how many of it came. All threads of the block.
template <class Body, class Last>
__device__ __forceinline__ void each_part(const TopkLaunch& launch, Body body, Last last) {
  const std::int64_t each = (launch.pieces + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = blockIdx.x * each, end = min_of(launch.pieces, begin + each);
  std::uint32_t pieces = 0;
  for (std::int64_t piece = begin; piece < end; ++piece) {
    const TopkPart part = find_part(launch, launch.piece_first + piece);
    body(part);
    ++pieces;
    if (piece + 1 < end && part.from + part.count < part.bucket.m) continue;
    last(part, pieces);
    pieces = 0;
  }
}

/// The i-th piece of the bucket after this one.
__device__ __forceinline__ TopkPart piece_after(const TopkPart& part, std::int64_t i) {
  TopkPart p = part;
  p.piece += i;
  p.from += i * piece_values;
  p.count = static_cast<int>(min_of(piece_values, p.bucket.m - p.from));
  return p;
}

/// Whether the bucket's other pieces have come, too, so that all that their blocks wrote can be read. The
/// same for all threads of the block.
__device__ __forceinline__ bool is_complete(const TopkPart& part, std::uint32_t pieces) {
  __shared__ bool complete;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    complete = atomicAdd(&part.state->pieces, pieces) + pieces == static_cast<std::uint32_t>(part.pieces());
    if (complete) part.state->pieces = 0;
    __threadfence();
  }
  __syncthreads();
  return complete;
}

// ---- A record's positions ascend, so those of a piece follow each other

/// How many of the record's first positions are below `position`. All lanes of the warp call it. (32 probes
/// at once, as each waits for memory.)
__device__ __forceinline__ std::int64_t positions_below(const std::byte* record, std::int64_t kept,
                                                        std::int64_t position) {
  std::int64_t low = 0, left = kept;
  while (left > 0) {
    const std::int64_t step = (left + kWarp - 1) / kWarp, probe = low + lane_number() * step;
    const bool is_below = probe < low + left && load_word(record + 4 * probe) < position;
    const int below = __popc(__ballot_sync(kAll, is_below));
    if (below == 0) break;
    const std::int64_t end = low + left;
    low += (below - 1) * step + 1;
    left = min_of(step - 1, end - low);
  }
  return low;
}

/// Where each of `records` has values of the piece: ranges[2 i] to ranges[2 i + 1]. At most kBlockWarps / 2
/// records. Threads of the block see them after a barrier.
__device__ __forceinline__ void find_ranges(const std::byte* const* records, int count, const TopkPart& part,
                                            std::int64_t* ranges) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp >= 2 * count) return;
  const std::int64_t position = part.from + (warp % 2 == 0 ? 0 : part.count);
  const std::int64_t below =
      positions_below(records[warp / 2] + part.bucket.record, part.bucket.kept, position);
  if (lane_number() == 0) ranges[warp] = below;
}

/// The sum of the contributions' values in the piece, in rank order.
__device__ __forceinline__ void sum_contributions(const TopkPart& part, float* sum) {
  constexpr int at_once = kBlockWarps / 2;
  __shared__ std::int64_t ranges[2 * at_once];
  const Job& job = *part.bucket.job;
  bool ignored = true;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x) * 4; i < piece_values; i += kBlock * 4)
    *reinterpret_cast<float4*>(sum + i) = make_float4(0, 0, 0, 0);
  for (std::int32_t first = 0; first < job.ranks; first += at_once) {
    const int count = static_cast<int>(min_of(at_once, job.ranks - first));
    __syncthreads();
    find_ranges(job.contributions + first, count, part, ranges);
    for (int r = 0; r < count; ++r) {
      __syncthreads();
      for (std::int64_t i = ranges[2 * r] + threadIdx.x; i < ranges[2 * r + 1]; i += kBlock)
        add_one(job.contributions[first + r] + part.bucket.record, part.bucket.kept, i, part.from, part.count,
                sum, &ignored);
    }
  }
  __syncthreads();
}

// ---- The values of a piece

/// The piece's values, all of this thread's at once, with the residual; what the squares of the plain ones
/// add up to is added to `own` if the job has an error. `sum`: piece_values of shared memory. All threads of
/// the block.
__device__ __forceinline__ void load_part(const TopkLaunch& launch, const TopkPart& part, float* sum,
                                          float (*v)[kEach], double* own) {
  const Job& job = *part.bucket.job;
  const float* residual = part.residual();
  if (job.contributions != nullptr) {
    sum_contributions(part, sum);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      load_values<true>(sum + held_at(h), kEach, v[h]);
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[h][k] *= launch.weight;
    }
  } else {
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      load_values(job.values + part.first() + held_at(h), part.count - held_at(h), v[h]);
  }
  float r[kHeld][kEach];
  if (residual != nullptr) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) load_values(residual + held_at(h), part.count - held_at(h), r[h]);
  }
  if (job.error != nullptr) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
#pragma unroll
      for (int k = 0; k < kEach; ++k) *own += static_cast<double>(v[h][k]) * static_cast<double>(v[h][k]);
  }
  if (residual == nullptr) return;
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[h][k] += r[h][k];
}

/// The piece's candidates, or all of its values where they do not fit a slot: value i and its position in the
/// piece.
struct Candidates {
  const float* values;
  const std::uint16_t* positions;  // nullptr: i
  int count;

  __device__ std::int32_t key(int i) const { return i < count ? topk_key(values[i]) : -1; }
  __device__ int position(int i) const { return positions != nullptr ? positions[i] : i; }
};

/// What is coded of a piece, as its own candidates in `kept`, piece_values of shared memory. The candidates'
/// kernel has made the residual, if there is one, what is coded. All threads of the block.
__device__ __forceinline__ Candidates load_all(const TopkLaunch& launch, const TopkPart& part, float* kept) {
  const Job& job = *part.bucket.job;
  const float* const residual = part.residual();
  const bool sums = residual == nullptr && job.contributions != nullptr;
  __syncthreads();
  if (sums) sum_contributions(part, kept);
#pragma unroll 1
  for (int h = 0; h < kHeld; ++h) {
    float v[kEach];
    if (sums) {
      load_values<true>(kept + held_at(h), kEach, v);
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] *= launch.weight;
    } else {
      load_values((residual != nullptr ? residual : job.values + part.first()) + held_at(h),
                  part.count - held_at(h), v);
    }
    store_values<true>(kept + held_at(h), kEach, v);
  }
  __syncthreads();
  return {kept, nullptr, part.count};
}

/// Calls of_warp(part, candidates) for the block's pieces whose candidates fit their slots, a piece a warp,
/// and of_block(part, values) for the others, with all threads of the block; then last(part, pieces) as
/// each_part(). `kept`: piece_values of shared memory.
template <class OfWarp, class OfBlock, class Last>
__device__ __forceinline__ void each_candidates(const TopkLaunch& launch, float* kept, OfWarp of_warp,
                                                OfBlock of_block, Last last) {
  const TopkScratch& scratch = launch.topk;
  const auto count_of = [&](const TopkPart& part) { return scratch.pieces[part.piece].candidates; };
  const auto slot = static_cast<std::uint32_t>(scratch.slot);
  const std::int64_t each = (launch.pieces + gridDim.x - 1) / gridDim.x;
  const std::int64_t end = min_of(launch.pieces, (blockIdx.x + std::int64_t{1}) * each);
  for (std::int64_t first = blockIdx.x * each; first < end;) {
    const TopkPart part = find_part(launch, launch.piece_first + first);
    const std::int64_t count = min_of(part.pieces() - part.from / piece_values, end - first);
    for (std::int64_t i = threadIdx.x / kWarp; i < count; i += kBlockWarps) {
      const TopkPart mine = piece_after(part, i);
      const std::uint32_t candidates = count_of(mine);
      if (candidates > slot) continue;
      const std::int64_t at = mine.piece * scratch.slot;
      of_warp(mine, Candidates{scratch.values + at, scratch.positions + at, static_cast<int>(candidates)});
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const TopkPart mine = piece_after(part, i);
      if (count_of(mine) > slot) of_block(mine, load_all(launch, mine, kept));
    }
    last(piece_after(part, count - 1), static_cast<std::uint32_t>(count));
    first += count;
  }
}

/// Adds the block's counts to the bucket's. Once all of its pieces are counted, finds the threshold's digit
/// at bit `shift`.
template <int shift>
__device__ __forceinline__ void join_counts(const TopkPart& part, std::uint32_t pieces,
                                            std::uint32_t* counts) {
  __shared__ std::uint32_t warps[kBlockWarps];
  TopkState& state = *part.state;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < TopkState::digits; i += kBlock) {
    if (counts[i] != 0) atomicAdd(&state.counts[i], counts[i]);
    counts[i] = 0;
  }
  if (!is_complete(part, pieces)) return;
  constexpr bool is_first = shift == 20;
  const std::uint32_t wanted = is_first ? static_cast<std::uint32_t>(part.bucket.kept) : state.ties;
  choose_digit<TopkState::digits>(state.counts, wanted, warps, [&](std::int32_t digit, std::uint32_t rank) {
    state.key = (is_first ? 0 : state.key) | digit << shift;
    state.ties = rank;
  });
}

}  // namespace
}  // namespace lpsgd::cuda
