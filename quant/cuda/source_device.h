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
  Job job;
  std::int64_t bucket_number;  // of the batch
  std::int64_t begin, m;       // the bucket: its first value in the job, its length; m <= 0: none
  std::int64_t from, count;    // the piece: its first value in the bucket, its length
  std::int64_t record;         // where the bucket's record starts, after the table
  int width;                   // lanes that share the bucket; the first lane has its first value
  std::int64_t trip;           // values to loop over, the same for all lanes of the warp

  __device__ int lane() const { return lane_number() & (width - 1); }
};

/// Piece `part` of a bucket. If buckets share a tile, this lane's bucket among those from `bucket` on.
template <class Rule>
__device__ Extent find_bucket(const LaunchFor<Rule>& launch, std::int32_t job_number, std::int64_t bucket,
                              std::int64_t part) {
  Extent p;
  p.job = launch.jobs[job_number];
  const bool shares = shares_tile(p.job.bucket);
  p.width = shares ? static_cast<int>(p.job.bucket) / kEach : kWarp;
  if (shares) bucket += lane_number() >> (p.job.bucket == 32 ? 2 : p.job.bucket == 64 ? 3 : 4);
  p.bucket_number = p.job.buckets_before + bucket;
  p.begin = bucket * p.job.bucket;
  p.m = min_of(p.job.bucket, p.job.n - p.begin);
  p.from = part * piece_values;
  p.count = min_of(piece_values, p.m - p.from);
  p.trip = shares ? p.job.bucket : p.count;
  p.record = bucket * record_bytes(p.job.bucket, count_scales<Rule>(launch), Rule::bits);
  return p;
}

template <class Rule>
__device__ Extent find_piece(const LaunchFor<Rule>& launch, std::int64_t piece) {
  const std::int32_t j = find_job(launch, piece, [](const Job& job) { return job.pieces_before; });
  const std::int64_t bucket = launch.jobs[j].bucket;
  const std::int64_t in_job = piece - launch.jobs[j].pieces_before;
  if (shares_tile(bucket))
    return find_bucket<Rule>(launch, j, in_job << (bucket == 32 ? 3 : bucket == 64 ? 2 : 1), 0);
  if (bucket <= piece_values) return find_bucket<Rule>(launch, j, in_job, 0);
  const std::int64_t each = (bucket + piece_values - 1) / piece_values;
  return find_bucket<Rule>(launch, j, in_job / each, in_job % each);
}

// ---- Codes in words

template <int bits>
struct CodeWords {
  static constexpr int per_word = 32 / bits;
  static constexpr int taken = bits * kEach >= 32 ? bits * kEach / 32 : 1;  // by a lane's eight codes
  static constexpr int codes = kEach / taken;                               // in each

  std::uint32_t word[taken];  // code k's lowest bit is bit (k % codes) * bits of word k / codes

  /// Value `at` of the bucket first, from `count` 32-bit words; those after the last are 0.
  __device__ __forceinline__ void load(const std::byte* words, std::int64_t count, std::int64_t at) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const std::int64_t i = at / per_word + w;
      word[w] = (i < count ? load_word(words + 4 * i) : 0u) >> (at % per_word * bits);
    }
  }
  __device__ __forceinline__ std::int32_t code(int k) const {
    return static_cast<std::int32_t>(word[k / codes] >> (k % codes * bits) & ((1u << bits) - 1u));
  }
  __device__ __forceinline__ void pack(const std::int32_t* from) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      word[w] = 0;
#pragma unroll
      for (int k = 0; k < codes; ++k)
        word[w] |= static_cast<std::uint32_t>(from[w * codes + k]) << (k * bits);
    }
  }
  /// Leaves the first `left` codes.
  __device__ __forceinline__ void clear_from(std::int64_t left) {
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const std::int64_t keep = left - w * codes;
      if (keep < codes) word[w] &= keep <= 0 ? 0u : (1u << (static_cast<int>(keep) * bits)) - 1u;
    }
  }
};

/// Stores the lane's codes, value `at` of the bucket first. All lanes of the warp call it. `tile`: 256 words
/// of shared memory for this warp.
template <int bits>
__device__ __forceinline__ void store_codes(std::byte* words, std::int64_t count, std::int64_t at, int width,
                                            const CodeWords<bits>& codes, std::uint32_t* tile) {
  constexpr int per_word = CodeWords<bits>::per_word, taken = CodeWords<bits>::taken;
  constexpr int sharers = bits * kEach >= 32 ? 1 : 32 / (bits * kEach);  // lanes of one word
  if (taken > 1 && width == kWarp) {  // neighbouring lanes write neighbouring words
#pragma unroll
    for (int w = 0; w < taken; ++w) tile[lane_number() * taken + w] = codes.word[w];
    __syncwarp();
    const std::int64_t first = (at - lane_number() * kEach) / per_word;
#pragma unroll
    for (int w = 0; w < taken; ++w) {
      const std::int64_t word = first + w * kWarp + lane_number();
      if (word < count) store_word(words + 4 * word, tile[w * kWarp + lane_number()]);
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
    const std::int64_t word = at / per_word + w;
    if (lane_number() % sharers == 0 && word < count) store_word(words + 4 * word, x);
  }
}

/// The scales of a record. If one is non-finite, the record decodes to NaNs.
template <class Rule>
__device__ __forceinline__ Scales read_scales(const LaunchFor<Rule>& launch, const std::byte* record) {
  const int scales = count_scales<Rule>(launch);
  Scales s{1, 1};
  if (scales > 0) s.a = s.b = load_float(record);
  if (scales > 1) s.b = load_float(record + 4);
  return s;
}
__device__ __forceinline__ bool are_finite(Scales s) {
  return is_finite(s.a) && is_finite(s.b);
}

// ---- What is coded: the rank's own values, or the mean of the contributions; plus the residual

enum class Source : std::uint8_t { own, mean };

/// The sum of the contributions' values; of a bucket with a scale that is not finite some NaN. Contributions
/// are loaded four at a time, so that their loads overlap. Codes of 2 and 4 bits are looked up: each lane
/// computes the value of one code, and shuffles give it to the others.
template <class Rule>
__device__ __forceinline__ void add_contributions(const LaunchFor<Rule>& launch, const Extent& extent,
                                                  std::int64_t at, float* v) {
  using Words = CodeWords<Rule::bits>;
  constexpr int at_once = Rule::bits == 16 ? 2 : 4, codes = 1 << (Rule::bits <= 4 ? Rule::bits : 0);
  const bool looks_up = Rule::bits > 1 && codes > 1 && codes <= extent.width;
  const Job& job = extent.job;
  const std::int64_t words = extent.m > 0 ? code_words(extent.m, Rule::bits) : 0;
  const int scales = count_scales<Rule>(launch);
  for (std::int32_t first = 0; first < launch.ranks; first += at_once) {
    Words loaded[at_once];
    float a[at_once], b[at_once];  // their scales
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i < launch.ranks) {
        const std::byte* record = job.contributions[first + i] + Rule::table_bytes + extent.record;
        loaded[i].load(record + 4 * scales, words, at);
        const Scales s = words > 0 ? read_scales<Rule>(launch, record) : Scales{};
        a[i] = s.a;
        b[i] = s.b;
      }
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i < launch.ranks) {
        Rule rule = make_rule<Rule>(launch, job, job.contributions[first + i]);
        const bool finite = is_finite(a[i]) && is_finite(b[i]);
        start(rule, {finite ? a[i] : canonical_nan(), finite ? b[i] : canonical_nan()});
        const float mine = looks_up ? rule.value(lane_number() & (codes - 1)) : 0.0f;
        const int base = lane_number() & -codes;
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
          const std::int32_t code = loaded[i].code(k);
          const float q = looks_up ? __shfl_sync(kAll, mine, base | code) : rule.value(code);
          v[k] = first + i == 0 ? q : v[k] + q;
        }
      }
    }
  }
}

/// Values at .. at + 7 of the bucket, of which `left` exist. All lanes of the warp call it.
template <class Rule, Source source>
__device__ __forceinline__ void load_source(const LaunchFor<Rule>& launch, const Extent& extent,
                                            std::int64_t at, std::int64_t left, float* v) {
  const Job& job = extent.job;
  if constexpr (source == Source::own) {
    load_values(job.values + extent.begin + at, left, v);
  } else {
    add_contributions<Rule>(launch, extent, at, v);
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] *= launch.weight;
    if (left < kEach) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] = k < left ? v[k] : 0.0f;
    }
  }
  if (job.residual != nullptr) {
    float residual[kEach];
    load_values(job.residual + extent.begin + at, left, residual);
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] += residual[k];
  }
}

}  // namespace
}  // namespace lpsgd::cuda
