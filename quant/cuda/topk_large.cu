// topk's buckets above shared_values on the device, in pieces of piece_values, which many blocks share.
//
// Five kernels encode such a bucket. The first two read its values: one counts the keys by their first digit,
// one copies the candidates, whose digit is at least the threshold's, into the piece's slot of scratch
// memory, and writes the residual. The others read the slots alone: the third counts by the last digit, the
// fourth the values above the threshold and equal to it, so that each piece's place in the record is known,
// and the fifth writes the record. A piece with more candidates than a slot holds is read from memory each
// time. Whichever block counts a bucket's last piece finds the digit, or the places, so the host never waits.
//
// Memory moved per value of a bucket, k of m values sent: encode 8 bytes, 12 more with a residual, 8 k/m (12
// with one), and 20 for each candidate; reduce the same with 16 ranks k/m in place of the 8 bytes; decode 4
// and 8 k/m, adding 16 k/m. Beside that 48 KiB a bucket, for its counts. Scratch memory: up to 6 bytes a
// value of whole pieces, 0.4 with a density of 0.01, and 8 KiB a bucket. Five launches; one for decode.
#include <algorithm>
#include <type_traits>

#include "quant/cuda/topk_large_device.h"

namespace lpsgd::cuda {
namespace {

__global__ void __launch_bounds__(kBlock, 4) count_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float sum[piece_values];
  __shared__ std::uint32_t counts[TopkState::digits];
  for (int i = static_cast<int>(threadIdx.x); i < TopkState::digits; i += kBlock) counts[i] = 0;
  __syncthreads();
  each_part(
      launch,
      [&](const TopkPart& part) {
        float v[kHeld][kEach];
        double ignored = 0;
        load_part(launch, part, sum, v, &ignored);
#pragma unroll
        for (int h = 0; h < kHeld; ++h)
#pragma unroll
          for (int k = 0; k < kEach; ++k)
            if (held_at(h) + k < part.count) atomicAdd(&counts[topk_key(v[h][k]) >> 20], 1u);
      },
      [&](const TopkPart& part, std::uint32_t pieces) { join_counts<20>(part, pieces, counts); });
}

/// Copies the candidates, and makes the residual what is coded.
__global__ void __launch_bounds__(kBlock, 3) candidates_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float kept[piece_values];
  __shared__ std::uint32_t counts[TopkState::digits];
  __shared__ std::uint32_t totals[kHeld * kBlockWarps];  // candidates of a tile
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = lane_number();
  for (int i = static_cast<int>(threadIdx.x); i < TopkState::digits; i += kBlock) counts[i] = 0;
  __syncthreads();
  const auto body = [&](const TopkPart& part) {
    const Job& job = *part.bucket.job;
    const std::int32_t low = part.state->key, high = low | ((1 << 20) - 1);
    float* residual = part.residual();
    double own = 0, lost = 0;
    float v[kHeld][kEach];
    load_part(launch, part, kept, v, &own);
    unsigned chosen = 0;                           // bit kEach * h + k
    static_assert(kHeld == 2 && kTile < 1 << 16);  // candidates of tile h: bits 16 h on
    std::uint32_t upto = 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        v[h][k] = canonical<ScalarLanes>(v[h][k]);
        const std::int32_t key = held_at(h) + k < part.count ? topk_key(v[h][k]) : -1;
        if (key < low) continue;
        if (key <= high) atomicAdd(&counts[(key - low) >> 10], 1u);
        chosen |= 1u << (kEach * h + k);
        upto += 1u << (16 * h);
      }
      if (residual != nullptr) store_values(residual + held_at(h), part.count - held_at(h), v[h]);
    }
    const std::uint32_t mine = upto;
    for (int other = 1; other < kWarp; other *= 2) {
      const std::uint32_t x = __shfl_sync(kAll, upto, lane >= other ? lane - other : lane);
      if (lane >= other) upto += x;
    }
    if (lane == kWarp - 1)
      for (int h = 0; h < kHeld; ++h) totals[warp + h * kBlockWarps] = upto >> (16 * h) & 0xffffu;
    __syncthreads();
    // Of the tiles before, in each warp by itself.
    constexpr int tiles = kHeld * kBlockWarps;
    static_assert(tiles <= kWarp);
    std::uint32_t sums = lane < tiles ? totals[lane] : 0;
    const std::uint32_t of_tile = sums;
    for (int other = 1; other < tiles; other *= 2) {
      const std::uint32_t x = __shfl_sync(kAll, sums, lane >= other ? lane - other : lane);
      if (lane >= other) sums += x;
    }
    const std::uint32_t all = __shfl_sync(kAll, sums, tiles - 1);
    if (threadIdx.x == 0) launch.topk.pieces[part.piece].candidates = all;
    const bool fits = all <= static_cast<std::uint32_t>(launch.topk.slot);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const std::uint32_t before = __shfl_sync(kAll, sums - of_tile, warp + h * kBlockWarps);
      std::int64_t to = part.piece * launch.topk.slot + before + ((upto - mine) >> (16 * h) & 0xffffu);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (!fits) continue;
        if ((chosen >> (kEach * h + k) & 1u) != 0) {
          launch.topk.values[to] = v[h][k];
          launch.topk.positions[to] = static_cast<std::uint16_t>(held_at(h) + k);
          ++to;
        } else if (job.error != nullptr &&
                   held_at(h) + k < part.count) {  // what candidates lose is known later
          lost += static_cast<double>(v[h][k]) * static_cast<double>(v[h][k]);
        }
      }
    }
    if (job.error != nullptr) add_error(job.error, own, lost);
    __syncthreads();  // `totals` is used again
  };
  each_part(launch, body,
            [&](const TopkPart& part, std::uint32_t pieces) { join_counts<10>(part, pieces, counts); });
}

__global__ void __launch_bounds__(kBlock, 4) last_digit_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float kept[piece_values];
  __shared__ std::uint32_t counts[TopkState::digits];
  for (int i = static_cast<int>(threadIdx.x); i < TopkState::digits; i += kBlock) counts[i] = 0;
  __syncthreads();
  const auto count = [&](const TopkPart& part, const Candidates& candidates, int first, int step) {
    const std::int32_t low = part.state->key, high = low | ((1 << 10) - 1);
    for (int i = first; i < candidates.count; i += step) {
      const std::int32_t key = candidates.key(i);
      if (key >= low && key <= high) atomicAdd(&counts[key - low], 1u);
    }
  };
  each_candidates(
      launch, kept,
      [&](const TopkPart& part, const Candidates& of) { count(part, of, lane_number(), kWarp); },
      [&](const TopkPart& part, const Candidates& of) {
        count(part, of, static_cast<int>(threadIdx.x), kBlock);
      },
      [&](const TopkPart& part, std::uint32_t pieces) { join_counts<0>(part, pieces, counts); });
}

/// What each piece has above the threshold and equal to it; of a bucket's last piece, what all have before.
__global__ void __launch_bounds__(kBlock, 4) places_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float kept[piece_values];
  __shared__ std::uint32_t warps[2][kBlockWarps];
  __shared__ std::uint32_t above_before, tied_before;
  // Above, and 2^16 times tied: a piece has at most 4096.
  const auto count = [&](const TopkPart& part, const Candidates& candidates, int first, int step) {
    const std::int32_t threshold = part.state->key;
    std::uint32_t mine = 0;
    for (int i = first; i < candidates.count; i += step) {
      const std::int32_t key = candidates.key(i);
      mine += key > threshold ? 1u : key == threshold ? 1u << 16 : 0u;
    }
    return mine;
  };
  const auto put = [&](const TopkPart& part, std::uint32_t sum) {
    TopkPiece& piece = launch.topk.pieces[part.piece];
    piece.above = sum & 0xffffu;
    piece.tied = sum >> 16;
  };
  const auto of_warp = [&](const TopkPart& part, const Candidates& candidates) {
    const std::uint32_t sum = sum_of(count(part, candidates, lane_number(), kWarp), kWarp);
    if (lane_number() == 0) put(part, sum);
  };
  const auto of_block = [&](const TopkPart& part, const Candidates& candidates) {
    const std::uint32_t mine = count(part, candidates, static_cast<int>(threadIdx.x), kBlock);
    const std::uint32_t after = sum_after(mine, warps[0]);
    if (threadIdx.x == 0) put(part, mine + after);
    __syncthreads();
  };
  each_candidates(launch, kept, of_warp, of_block, [&](const TopkPart& part, std::uint32_t pieces) {
    if (!is_complete(part, pieces)) return;
    TopkPiece* all = launch.topk.pieces + part.piece - part.from / piece_values;
    if (threadIdx.x == 0) above_before = tied_before = 0;
    constexpr int each = 4;
    for (std::int64_t first = 0; first < part.pieces(); first += kBlock * each) {
      // So that what comes after a thread's pieces, in the threads' order, is what is before them.
      const std::int64_t mine = first + (kBlock - 1 - static_cast<std::int64_t>(threadIdx.x)) * each;
      TopkPiece pieces_of[each];
      std::uint32_t above = 0, tied = 0;
#pragma unroll
      for (int i = 0; i < each; ++i)
        if (mine + i < part.pieces()) pieces_of[i] = all[mine + i];
#pragma unroll
      for (int i = 0; i < each; ++i) above += pieces_of[i].above, tied += pieces_of[i].tied;
      const std::uint32_t above_here = sum_after(above, warps[0]), tied_here = sum_after(tied, warps[1]);
      std::uint32_t above_of = above_before + above_here, tied_of = tied_before + tied_here;
#pragma unroll
      for (int i = 0; i < each; ++i) {
        if (mine + i >= part.pieces()) continue;
        all[mine + i].above = above_of;
        all[mine + i].tied = tied_of;
        above_of += pieces_of[i].above;
        tied_of += pieces_of[i].tied;
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        above_before = above_of;
        tied_before = tied_of;
      }
      __syncthreads();
    }
  });
}

__global__ void __launch_bounds__(kBlock, 4) write_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float kept[piece_values];
  __shared__ std::uint32_t aboves[kBlockWarps], ties[kBlockWarps];
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = lane_number();
  // `wide`: all threads of the block share the piece; else those of a warp.
  const auto write = [&](const TopkPart& part, const Candidates& candidates, auto wide) {
    constexpr int step = decltype(wide)::value ? kBlock : kWarp;
    const Job& job = *part.bucket.job;
    const std::int32_t threshold = part.state->key;
    const std::uint32_t most = part.state->ties;  // of the tied values are sent
    std::uint32_t above = launch.topk.pieces[part.piece].above, tied = launch.topk.pieces[part.piece].tied;
    float* residual = part.residual();
    std::byte* record = job.bytes + part.bucket.record;
    bool finite = true;
    double lost = 0;
    for (int at = 0; at < candidates.count; at += step) {
      const int i = at + static_cast<int>(threadIdx.x) % step;
      const std::int32_t key = candidates.key(i);
      const unsigned is_above = __ballot_sync(kAll, key > threshold);
      const unsigned is_tied = __ballot_sync(kAll, key == threshold);
      const unsigned before = (1u << lane) - 1u;
      std::uint32_t above_before = above + static_cast<std::uint32_t>(__popc(is_above & before));
      std::uint32_t tied_before = tied + static_cast<std::uint32_t>(__popc(is_tied & before));
      const auto above_here = static_cast<std::uint32_t>(__popc(is_above));
      const auto tied_here = static_cast<std::uint32_t>(__popc(is_tied));
      if constexpr (decltype(wide)::value) {
        __syncthreads();
        if (lane == 0) {
          aboves[warp] = above_here;
          ties[warp] = tied_here;
        }
        __syncthreads();
        for (int w = 0; w < kBlockWarps; ++w) {
          if (w < warp) {
            above_before += aboves[w];
            tied_before += ties[w];
          }
          above += aboves[w];
          tied += ties[w];
        }
      } else {
        above += above_here;
        tied += tied_here;
      }
      if (i >= candidates.count) continue;
      const bool keep = key > threshold || (key == threshold && tied_before < most);
      const float v = candidates.values[i];
      const float left = canonical<ScalarLanes>(keep ? v - (v + 0.0f) : v);
      const int position = candidates.position(i);
      if (keep) {
        const std::uint32_t place = above_before + (tied_before < most ? tied_before : most);
        store_word(record + 4 * static_cast<std::int64_t>(place),
                   static_cast<std::uint32_t>(part.from + position));
        store_float(record + 4 * (part.bucket.kept + place), canonical<ScalarLanes>(v));
        finite &= is_finite(v);
        if (residual != nullptr) residual[position] = left;
      }
      lost += static_cast<double>(left) * static_cast<double>(left);
    }
    if (!finite) *job.non_finite = 1;
    if (job.error != nullptr) add_error(job.error, 0, lost);
  };
  each_candidates(
      launch, kept, [&](const TopkPart& part, const Candidates& of) { write(part, of, std::false_type{}); },
      [&](const TopkPart& part, const Candidates& of) { write(part, of, std::true_type{}); },
      [](const TopkPart&, std::uint32_t) {});
}

template <bool adds>
__global__ void __launch_bounds__(kBlock, 4) decode_large_topk_kernel(TopkLaunch launch) {
  __shared__ __align__(16) float sum[adds ? kEach : piece_values];
  __shared__ std::int64_t range[2];
  const auto body = [&](const TopkPart& part) {
    const Job& job = *part.bucket.job;
    float* out = job.out + part.first();
    const std::byte* const record = job.bytes;
    __syncthreads();
    if constexpr (!adds) {
      for (int h = 0; h < kHeld; ++h) {
        const float zeros[kEach] = {};
        store_values(sum + held_at(h), kEach, zeros);
      }
    }
    find_ranges(&record, 1, part, range);
    __syncthreads();
    float* to = sum;
    if constexpr (adds) to = out;
    bool finite = true;
    for (std::int64_t i = range[0] + threadIdx.x; i < range[1]; i += kBlock)
      add_one(record + part.bucket.record, part.bucket.kept, i, part.from, part.count, to, &finite);
    if (!finite) *job.non_finite = 1;
    if constexpr (!adds) {
      __syncthreads();
      for (int h = 0; h < kHeld; ++h) {
        float v[kEach];
        load_values(sum + held_at(h), kEach, v);
        store_values(out + held_at(h), part.count - held_at(h), v);
      }
    }
  };
  each_part(launch, body, [](const TopkPart&, std::uint32_t) {});
}

/// A block joins its counts once for all of its pieces of a bucket, so there are not many more blocks than a
/// large GPU runs at once.
unsigned blocks(std::int64_t pieces) {
  return static_cast<unsigned>(std::min<std::int64_t>(pieces, 1024));
}
/// A piece's candidates are a warp's.
unsigned candidate_blocks(std::int64_t pieces) {
  return blocks((pieces + kBlockWarps - 1) / kBlockWarps);
}

}  // namespace

void encode_topk_pieces(const Launch& launch, const TopkOptions& options, cudaStream_t stream) {
  const TopkLaunch own{launch, options};
  for (const auto kernel : {count_topk_kernel, candidates_topk_kernel})
    LPSGD_LAUNCH(kernel, blocks(launch.pieces), kBlock, stream)(own);
  for (const auto kernel : {last_digit_topk_kernel, places_topk_kernel, write_topk_kernel})
    LPSGD_LAUNCH(kernel, candidate_blocks(launch.pieces), kBlock, stream)(own);
}
void decode_topk_pieces(const Launch& launch, const TopkOptions& options, bool adds, cudaStream_t stream) {
  const TopkLaunch own{launch, options};
  const auto kernel = adds ? decode_large_topk_kernel<true> : decode_large_topk_kernel<false>;
  LPSGD_LAUNCH(kernel, blocks(launch.pieces), kBlock, stream)(own);
}

}  // namespace lpsgd::cuda
