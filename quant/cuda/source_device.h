// For codecs with bucket scales: the layout of values and codes, and loading and storing them. Internal to
// quant.
#pragma once

#include "quant/cuda/warp_device.h"

namespace lpsgd::cuda {
namespace {

// ---- The rule (quant/scaled_rule_device.h) of a launch

template <class Rule>
using LaunchFor = LaunchOf<typename Rule::Options>;

template <class Rule>
__device__ int count_scales(const LaunchFor<Rule>& launch) {
  return scale_count(scale_by<Rule>(launch.options));
}

/// For decoding, the table is read from `encoding`; nullptr: the launch's table is used.
template <class Rule>
__device__ Rule make_rule(const LaunchFor<Rule>& launch, const Job& job, const std::byte* encoding) {
  if constexpr (std::is_constructible_v<Rule, typename Rule::Options, const DeviceTable*, const std::byte*>)
    return Rule(launch.options, launch.tables ? &launch.tables[job.table_number] : nullptr, encoding);
  else if constexpr (std::is_void_v<typename Rule::Constants>)
    return Rule(launch.options);
  else
    return Rule(launch.options, *static_cast<const typename Rule::Constants*>(launch.constants));
}

template <class Rule>
__device__ __forceinline__ void start(Rule& rule, Scales scales) {
  if constexpr (Rule::scales[0] == Scale::sides)
    rule.start(scales.a, scales.b);
  else
    rule.start(scales.a);
}

// ---- Where a lane's values lie

struct Extent {
  static constexpr bool whole = false;
  Job job;
  std::int64_t bucket_number;  // of the batch
  std::int64_t begin, m;       // the bucket: its first value in the job, its length; 0: none
  std::int64_t from;           // the piece: its first value in the bucket
  std::int64_t record;         // where the bucket's record starts, after the table. A lane without a bucket
                               // reads the first record, and drops what it read.
  int count;                   // the piece's values; 0: none
  int width;                   // lanes that share the bucket; the first lane has its first value
  int trip;                    // values to loop over, the same for all lanes of the warp

  __device__ int lane() const { return lane_number() & (width - 1); }
  /// The piece's first value in the job.
  __device__ std::int64_t first() const { return begin + from; }
};

/// A whole piece of a job that allows wide access: a bucket of 512 values, or buckets of 8 values a lane that
/// share a tile. What is known of it when the kernel is compiled takes no instructions.
template <int lanes>
struct WholeExtent {
  static constexpr bool whole = true;
  static constexpr int width = lanes, count = lanes * (lanes == kWarp ? small_values / kWarp : kEach),
                       m = count, trip = count, from = 0;
  static constexpr int tiles = (count + kTile - 1) / kTile;
  const Job& job;
  std::int64_t begin;  // this lane's bucket
  std::int64_t record;

  __device__ static int lane() { return lane_number() % lanes; }
  __device__ std::int64_t first() const { return begin; }
};

/// A whole bucket of whole tiles, likewise.
struct WholeBucket {
  static constexpr bool whole = true;
  static constexpr int width = kWarp, from = 0, trip = kTile;  // tile by tile
  const Job& job;
  int m, count;  // the same
  std::int64_t begin, record;

  __device__ static int lane() { return lane_number(); }
  __device__ std::int64_t first() const { return begin; }
};

template <class E>
using WordsOf = WordsAt<E::whole>;

/// Of a bucket of `length` values: log2 of the lanes that share it.
__device__ __forceinline__ int lanes_log2(int length) {
  return length == 32 ? 2 : length == 64 ? 3 : length == 128 ? 4 : 5;
}

/// A bucket of at most kept_values: one piece. If buckets share a tile, this lane's among those from `bucket`
/// on.
template <class Rule>
__device__ __forceinline__ Extent find_bucket(const LaunchFor<Rule>& launch, std::int32_t job_number,
                                              std::uint32_t bucket) {
  Extent p;
  p.job = launch.jobs[job_number];
  const int length = static_cast<int>(p.job.bucket), lanes = lanes_log2(length);
  p.width = 1 << lanes;
  bucket += static_cast<unsigned>(lane_number() >> lanes);
  p.bucket_number = p.job.buckets_before + bucket;
  p.begin = static_cast<std::int64_t>(bucket) * length;
  p.from = 0;
  const std::int64_t left = p.job.n - p.begin;
  p.count = left >= length ? length : left > 0 ? static_cast<int>(left) : 0;
  p.m = p.count;
  p.trip = p.width < kWarp ? length : p.count;
  const auto record = static_cast<unsigned>(record_bytes(length, count_scales<Rule>(launch), Rule::bits));
  p.record = p.count > 0 ? static_cast<std::int64_t>(std::uint64_t{bucket} * record) : 0;
  return p;
}

/// Piece `piece` of the batch, of a job with buckets of at most piece_values: its bucket; if several share
/// the piece, this lane's.
template <class Rule>
__device__ __forceinline__ Extent find_small(const LaunchFor<Rule>& launch, std::int32_t job_number,
                                             std::int64_t piece) {
  const Job& job = launch.jobs[job_number];
  const auto number = static_cast<std::uint32_t>(piece - job.pieces_before);
  return find_bucket<Rule>(launch, job_number, number << (5 - lanes_log2(static_cast<int>(job.bucket))));
}

/// The i-th of the job's whole pieces.
template <class Rule, int lanes>
__device__ __forceinline__ WholeExtent<lanes> whole_piece(const LaunchFor<Rule>& launch, const Job& job,
                                                          std::uint32_t i) {
  using E = WholeExtent<lanes>;
  const std::uint32_t bucket = i * (kWarp / lanes) + static_cast<unsigned>(lane_number()) / lanes;
  const auto record =
      static_cast<std::uint32_t>(record_bytes(E::count, count_scales<Rule>(launch), Rule::bits));
  return {job, static_cast<std::int64_t>(std::uint64_t{bucket} * static_cast<unsigned>(E::count)),
          static_cast<std::int64_t>(std::uint64_t{bucket} * record)};
}

/// The i-th of the job's whole buckets.
template <class Rule>
__device__ __forceinline__ WholeBucket whole_bucket_of(const LaunchFor<Rule>& launch, const Job& job,
                                                       std::uint32_t i) {
  const auto length = static_cast<std::uint32_t>(job.bucket);
  const auto m = static_cast<int>(length);
  const auto record =
      static_cast<std::uint32_t>(record_bytes(length, count_scales<Rule>(launch), Rule::bits));
  return {job, m, m, static_cast<std::int64_t>(std::uint64_t{i} * length),
          static_cast<std::int64_t>(std::uint64_t{i} * record)};
}

/// Piece `piece` of the batch.
template <class Rule>
__device__ Extent find_piece(const LaunchFor<Rule>& launch, std::int64_t piece) {
  const std::int32_t j = find_job_of_piece(launch, piece);
  const Job& job = launch.jobs[j];
  if (job.bucket <= piece_values) return find_small<Rule>(launch, j, piece);
  const std::int64_t number = piece - job.pieces_before;
  const std::int64_t each = (job.bucket + piece_values - 1) / piece_values, bucket = number / each;
  Extent p;
  p.job = job;
  p.width = kWarp;
  p.bucket_number = job.buckets_before + bucket;
  p.begin = bucket * job.bucket;
  p.m = min_of(job.bucket, job.n - p.begin);
  p.from = number % each * piece_values;
  p.count = static_cast<int>(min_of(piece_values, p.m - p.from));
  p.trip = p.count;
  p.record = bucket * record_bytes(job.bucket, count_scales<Rule>(launch), Rule::bits);
  return p;
}

// ---- Codes in words

/// Where the piece's words begin in its bucket's record, in words.
template <class Rule, class E>
__device__ __forceinline__ std::int64_t codes_at(const LaunchFor<Rule>& launch, const E& extent) {
  return count_scales<Rule>(launch) + extent.from / 32 * Rule::bits;
}
template <class Rule, class E>
__device__ __forceinline__ int word_count(const E& extent) {
  return static_cast<int>(code_words(extent.count, Rule::bits));
}

template <int bits>
struct CodeWords {
  static constexpr int per_word = 32 / bits;
  static constexpr int taken = bits * kEach >= 32 ? bits * kEach / 32 : 1;  // by a lane's eight codes
  static constexpr int codes = kEach / taken;                               // in each

  std::uint32_t word[taken];  // code k's lowest bit is bit (k % codes) * bits of word k / codes

  /// Value `at` of the piece first, from its `count` words. Codes after the last may have any bits. (No
  /// branch, so that many loads are under way at once.)
  template <bool whole>
  __device__ __forceinline__ void load(const WordsAt<whole>& words, int count, int at) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const int i = at / per_word + w, last = count > 0 ? count - 1 : 0;
      word[w] = words[whole || i < last ? i : last] >> (at % per_word * bits);
    }
  }
  /// Code k, with other bits above its own.
  __device__ __forceinline__ std::int32_t code(int k) const {
    return static_cast<std::int32_t>(word[k / codes] >> (k % codes * bits));
  }
  template <class CodeOf>
  __device__ __forceinline__ void pack(CodeOf code_of) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      word[w] = 0;
#pragma unroll
      for (int k = 0; k < codes; ++k)
        word[w] |= static_cast<std::uint32_t>(code_of(w * codes + k)) << (k * bits);
    }
  }
  /// Packs with_sign() of levels. The signs of level 0 are taken out of all codes of a word at once.
  template <class LevelOf>
  __device__ __forceinline__ void pack_levels(const float* v, LevelOf level_of) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      std::uint32_t levels = 0, signs = 0, largest = 0;
#pragma unroll
      for (int k = 0; k < codes; ++k) {
        const int sign_bit = k * bits + bits - 1;
        const auto sign = static_cast<std::uint32_t>(ScalarLanes::bits(v[w * codes + k])) >> 31;
        levels += static_cast<std::uint32_t>(level_of(w * codes + k)) << (k * bits);
        signs |= sign << sign_bit;
        largest |= ((1u << (bits - 1)) - 1u) << (k * bits);
      }
      word[w] = levels | (signs & (levels + largest));  // a level above 0 carries into its sign's bit
    }
  }
  /// Leaves the first `left` codes.
  __device__ __forceinline__ void clear_from(int left) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const int keep = left - w * codes;
      if (keep < codes) word[w] &= keep <= 0 ? 0u : (1u << (keep * bits)) - 1u;
    }
  }
};

/// Stores the lane's codes, value `at` of the piece first, in the piece's `count` words. All lanes of the
/// warp call it. `tile`: 256 words of shared memory for this warp. `whole`: all of the words are there, and
/// they are aligned.
template <int bits, bool whole>
__device__ __forceinline__ void store_codes(std::byte* words, int count, int at, int width,
                                            const CodeWords<bits>& codes, std::uint32_t* tile) {
  constexpr int per_word = CodeWords<bits>::per_word, taken = CodeWords<bits>::taken;
  constexpr int sharers = bits * kEach >= 32 ? 1 : 32 / (bits * kEach);  // lanes of one word
  if (taken > 1 && width == kWarp) {  // neighbouring lanes write neighbouring words
#pragma unroll
    for (int w = 0; w < taken; ++w) tile[lane_number() * taken + w] = codes.word[w];
    __syncwarp();
    const int first = (at - lane_number() * kEach) / per_word;
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const int word = first + w * kWarp + lane_number();
      if (whole || word < count) store_word<whole>(words + 4 * word, tile[w * kWarp + lane_number()]);
    }
    __syncwarp();
    return;
  }
#pragma unroll
  for (int w = 0; w < taken; ++w) {
    std::uint32_t x = codes.word[w];
    if constexpr (sharers > 1) {
      x <<= lane_number() % sharers * (bits * kEach);
#pragma unroll
      for (int other = 1; other < sharers; other *= 2) x |= __shfl_xor_sync(kAll, x, other);
    }
    const int word = at / per_word + w;
    if (lane_number() % sharers == 0 && (whole || word < count)) store_word<whole>(words + 4 * word, x);
  }
}

/// The scales of a record. If one is non-finite, the record decodes to NaNs.
template <class Rule, class Memory>
__device__ __forceinline__ Scales read_scales(const LaunchFor<Rule>& launch, const Memory& record) {
  const int scales = count_scales<Rule>(launch);
  Scales s{1, 1};
  if (scales > 0) s.a = s.b = as_float(record[0]);
  if (scales > 1) s.b = as_float(record[1]);
  return s;
}
__device__ __forceinline__ bool are_finite(Scales s) {
  return is_finite(s.a) && is_finite(s.b);
}

// ---- What is coded: the rank's own values, or the mean of the contributions; plus the residual

enum class Source : std::uint8_t { own, mean };

/// The sums of the contributions' values of the piece's `tiles` tiles from value `at` of this lane on; of a
/// bucket with a scale that is not finite some NaN. Contributions are loaded four at a time, so that their
/// loads overlap; two where they take more registers. Codes of 2 and 4 bits, of buckets that as many lanes
/// share as there are codes, are looked up: each lane computes the value of one code, and shuffles give it to
/// the others.
template <class Rule, int tiles, class E>
__device__ __forceinline__ void add_contributions(const LaunchFor<Rule>& launch, const E& extent, int at,
                                                  float (*v)[kEach]) {
  constexpr int at_once = Rule::bits == 16 || Rule::scales[0] == Scale::sides ? 2 : 4,
                codes = Rule::bits == 2 || Rule::bits == 4 ? 1 << Rule::bits : 1;
  const int words = word_count<Rule>(extent);
#pragma unroll
  for (int t = 0; t < tiles; ++t)
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[t][k] = -0.0f;  // so that the first sum is the first value, also -0
  for (std::int32_t first = 0; first < launch.ranks; first += at_once) {
    CodeWords<Rule::bits> loaded[at_once][tiles];
    const std::byte* encoding[at_once];
    Scales scales[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)  // after the last rank the last one again
      encoding[i] = extent.job.contributions[first + i < launch.ranks ? first + i : launch.ranks - 1];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const WordsOf<E> record(encoding[i] + Rule::table_bytes + extent.record);
      scales[i] = read_scales<Rule>(launch, record);
      const WordsOf<E> code_words_of = record.from(codes_at<Rule>(launch, extent));
#pragma unroll
      for (int t = 0; t < tiles; ++t) loaded[i][t].load(code_words_of, words, at + t * kTile);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i >= launch.ranks) continue;
      Rule rule = make_rule<Rule>(launch, extent.job, encoding[i]);
      start(rule, are_finite(scales[i]) ? scales[i] : Scales{canonical_nan(), canonical_nan()});
      const auto add = [&](auto value) {
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
          if (t * kTile >= extent.trip) continue;
#pragma unroll
          for (int k = 0; k < kEach; ++k) v[t][k] += value(loaded[i][t].code(k));
        }
      };
      if (codes > 1 && codes <= extent.width) {
        const float mine = rule.value(lane_number() % codes);
        add([&](std::int32_t code) { return __shfl_sync(kAll, mine, code, codes); });
      } else {
        add([&](std::int32_t code) { return rule.value(code); });
      }
    }
  }
}

/// Of an array of the job: this lane's values of the piece's `tiles` tiles from value `at` on; those that do
/// not exist are +0.
template <int tiles, class E>
__device__ __forceinline__ void load_tiles(const E& extent, const float* from, int at, float (*v)[kEach]) {
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    const int value = at + t * kTile;
    if (t * kTile < extent.trip)
      load_values<E::whole>(from + extent.first() + value, extent.count - value, v[t]);
  }
}
template <int tiles, class E>
__device__ __forceinline__ void add_tiles(const E& extent, const float (*residual)[kEach],
                                          float (*v)[kEach]) {
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    if (t * kTile >= extent.trip) continue;
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[t][k] += residual[t][k];
  }
}

/// What is coded, as load_tiles() loads it. All lanes of the warp call it.
template <class Rule, Source source, int tiles, class E>
__device__ __forceinline__ void load_source(const LaunchFor<Rule>& launch, const E& extent, int at,
                                            float (*v)[kEach]) {
  const Job& job = extent.job;
  if constexpr (source == Source::own) {
    load_tiles<tiles>(extent, job.values, at, v);
  } else {
    add_contributions<Rule, tiles>(launch, extent, at, v);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const int left = extent.count - at - t * kTile;
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[t][k] *= launch.weight;
      if (!E::whole && left < kEach) {
#pragma unroll
        for (int k = 0; k < kEach; ++k) v[t][k] = k < left ? v[t][k] : 0.0f;
      }
    }
  }
  if (job.residual == nullptr) return;
  float residual[tiles][kEach];
  load_tiles<tiles>(extent, job.residual, at, residual);
  add_tiles<tiles>(extent, residual, v);
}

}  // namespace
}  // namespace lpsgd::cuda
