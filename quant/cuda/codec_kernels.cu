// A warp takes a piece, at most 4096 values of one bucket, in tiles of 256: lane j has values 8j .. 8j+7 of a
// tile, read 16 bytes at a time; eight values are one Philox counter and 8*bits bits of codes. For sums the
// tile goes through shared memory, so that lane j adds values j, j + 32, ... as the fixed order asks.
//
// A bucket of one piece is scanned and coded by one kernel, the second time from cache; larger ones take
// three: scan the pieces, combine the scans of each bucket, code the pieces.
#include "quant/cuda/codec_kernels.h"

namespace lpsgd::cuda {
namespace {

constexpr int kWarp = 32, kWarps = 4;  // per block
constexpr int kEach = 8;               // values of a lane
constexpr int kTile = kWarp * kEach;
constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ int lane_number() {
  return static_cast<int>(threadIdx.x % kWarp);
}
__device__ __forceinline__ std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
template <class T>
__device__ __forceinline__ bool aligned(const T* p, std::size_t bytes) {
  return reinterpret_cast<std::size_t>(p) % bytes == 0;
}

// ---- Memory: 16 bytes at a time where address and length allow

/// Eight values at p, of which `left` exist; the others become +0.
__device__ __forceinline__ void load_values(const float* p, std::int64_t left, float* v) {
  if (left >= kEach && aligned(p, 16)) {
    const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else {
    for (int k = 0; k < kEach; ++k) v[k] = k < left ? p[k] : 0.0f;
  }
}
__device__ __forceinline__ void store_values(float* p, std::int64_t left, const float* v) {
  if (left >= kEach && aligned(p, 16)) {
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
  } else {
    for (int k = 0; k < kEach; ++k)
      if (k < left) p[k] = v[k];
  }
}
/// Words lie at any even address: 2-bit optimal levels have a table of two bytes.
__device__ __forceinline__ std::uint32_t load_word(const std::byte* p) {
  if (aligned(p, 4)) return *reinterpret_cast<const std::uint32_t*>(p);
  const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
  return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}
__device__ __forceinline__ void store_word(std::byte* p, std::uint32_t word) {
  if (aligned(p, 4)) {
    *reinterpret_cast<std::uint32_t*>(p) = word;
  } else {
    auto* halves = reinterpret_cast<std::uint16_t*>(p);
    halves[0] = static_cast<std::uint16_t>(word);
    halves[1] = static_cast<std::uint16_t>(word >> 16);
  }
}
__device__ __forceinline__ float load_float(const std::byte* p) {
  return __uint_as_float(load_word(p));
}

/// The lane's eight codes, value `at` of the bucket first, from words of `words` 32-bit words.
template <int bits>
__device__ __forceinline__ void load_codes(const std::byte* words, std::int64_t count, std::int64_t at,
                                           std::int32_t* codes) {
  constexpr int per_word = 32 / bits;
  constexpr int taken = bits * kEach >= 32 ? bits * kEach / 32 : 1;
#pragma unroll
  for (int w = 0; w < taken; ++w) {
    const std::int64_t word = at / per_word + w;
    const std::uint32_t x = (word < count ? load_word(words + 4 * word) : 0u) >> (at % per_word * bits);
#pragma unroll
    for (int k = 0; k < kEach / taken; ++k)
      codes[w * (kEach / taken) + k] = static_cast<std::int32_t>(x >> (k * bits) & ((1u << bits) - 1u));
  }
}

/// The inverse; codes behind the last value are 0. All lanes of the warp call it.
template <int bits>
__device__ __forceinline__ void store_codes(std::byte* words, std::int64_t count, std::int64_t at,
                                            const std::int32_t* codes) {
  constexpr int per_word = 32 / bits;
  constexpr int taken = bits * kEach >= 32 ? bits * kEach / 32 : 1;
  constexpr int sharers = bits * kEach >= 32 ? 1 : 32 / (bits * kEach);  // lanes of one word
#pragma unroll
  for (int w = 0; w < taken; ++w) {
    std::uint32_t x = 0;
#pragma unroll
    for (int k = 0; k < kEach / taken; ++k)
      x |= static_cast<std::uint32_t>(codes[w * (kEach / taken) + k]) << (k * bits);
    if constexpr (sharers > 1) {
      x <<= lane_number() % sharers * (bits * kEach);
#pragma unroll
      for (int other = 1; other < sharers; other *= 2) x |= __shfl_xor_sync(kAll, x, other);
    }
    const std::int64_t word = at / per_word + w;
    if (lane_number() % sharers == 0 && word < count) store_word(words + 4 * word, x);
  }
}

// ---- Rules: as quant/cpu_scaled_inl.h has them, with onebit's two scales

enum class Statistic { largest, norm, mean, sides };

struct OnebitRule {
  static constexpr int bits = 1;
  static constexpr bool dithered = false;
  float positive = 0, negative = 0;
  __device__ OnebitRule(const Launch&, const LevelTable*, const std::byte*) {}
  __device__ static int table_bytes() { return 0; }
  __device__ static Statistic statistic(const Launch&) { return Statistic::sides; }
  __device__ static int scale_count(const Launch&) { return 2; }
  __device__ void start(Scales s) { positive = s.a, negative = s.b; }
  __device__ std::int32_t code(float v, std::int32_t) const { return sign_code<ScalarLanes>(v); }
  __device__ float value(std::int32_t code) const {
    return onebit_value<ScalarLanes>(code, positive, negative);
  }
};

struct SignRule {
  static constexpr int bits = 1;
  static constexpr bool dithered = false;
  float scale = 1;
  bool majority;
  __device__ SignRule(const Launch& launch, const LevelTable*, const std::byte*)
      : majority(launch.sign.majority) {}
  __device__ static int table_bytes() { return 0; }
  __device__ static Statistic statistic(const Launch& launch) {
    return launch.sign.majority ? Statistic::largest : Statistic::mean;
  }
  __device__ static int scale_count(const Launch& launch) { return launch.sign.majority ? 0 : 1; }
  __device__ void start(Scales s) { scale = majority ? 1.0f : s.a; }
  __device__ std::int32_t code(float v, std::int32_t) const { return sign_code<ScalarLanes>(v); }
  __device__ float value(std::int32_t code) const { return sign_value<ScalarLanes>(code, scale); }
};

struct Dynamic8Rule {
  static constexpr int bits = 8;
  static constexpr bool dithered = false;
  const Dynamic8Table* table;
  float scale = 0, divisor = 1;
  __device__ Dynamic8Rule(const Launch& launch, const LevelTable*, const std::byte*)
      : table(launch.dynamic8) {}
  __device__ static int table_bytes() { return 0; }
  __device__ static Statistic statistic(const Launch&) { return Statistic::largest; }
  __device__ static int scale_count(const Launch&) { return 1; }
  __device__ void start(Scales s) {
    scale = s.a;
    divisor = s.a > 0 ? s.a : 1.0f;
  }
  __device__ std::int32_t code(float v, std::int32_t) const {
    return dynamic8_code<ScalarLanes>(*table, v, divisor);
  }
  __device__ float value(std::int32_t code) const { return dynamic8_value<ScalarLanes>(*table, code, scale); }
};

template <int width, QsgdOptions::Levels levels>
struct QsgdRule {
  using Levels = QsgdOptions::Levels;
  static constexpr int bits = width;
  static constexpr bool dithered = true;
  const LevelTable* cells;  // for encoding with a table
  const std::byte* table;   // its bytes
  float norm = 0, divisor = 1;
  __device__ QsgdRule(const Launch&, const LevelTable* unpacked, const std::byte* bytes)
      : cells(unpacked), table(bytes) {}
  __device__ static int table_bytes() { return levels == Levels::optimal ? qsgd_levels(width) + 1 : 0; }
  __device__ static Statistic statistic(const Launch& launch) {
    return launch.qsgd.norm == QsgdOptions::Norm::l2 ? Statistic::norm : Statistic::largest;
  }
  __device__ static int scale_count(const Launch&) { return 1; }
  __device__ void start(Scales s) {
    norm = s.a;
    divisor = qsgd_divisor(s.a);
  }
  __device__ std::int32_t code(float v, std::int32_t half) const {
    if constexpr (levels == Levels::interval) return interval_code<ScalarLanes>(v, norm, half, width);
    if constexpr (levels == Levels::exponential)
      return exponential_code<ScalarLanes>(v, divisor, half, width);
    if constexpr (levels == Levels::optimal)
      return optimal_code<ScalarLanes>(*cells, v, divisor, half, width);
    return qsgd_code<ScalarLanes>(v, divisor, half, width);
  }
  __device__ float value(std::int32_t code) const {
    if constexpr (levels == Levels::interval) return interval_value<ScalarLanes>(code, norm, width);
    if constexpr (levels == Levels::exponential) return exponential_value<ScalarLanes>(code, norm, width);
    if constexpr (levels == Levels::optimal) {
      const std::int32_t level = code & qsgd_levels(width);
      const float fraction = level == qsgd_levels(width)
                                 ? 1.0f
                                 : static_cast<float>(static_cast<std::uint8_t>(table[level])) * 0x1p-8f;
      return qsgd_scaled<ScalarLanes>(fraction, code, norm, width);
    }
    return qsgd_value<ScalarLanes>(code, norm, width);
  }
};

/// The scales of a record; not finite: it decodes to NaN throughout.
template <class Rule>
__device__ __forceinline__ Scales read_scales(const Launch& launch, const std::byte* record) {
  const int scales = Rule::scale_count(launch);
  Scales s{1, 1};
  if (scales > 0) s.a = s.b = load_float(record);
  if (scales > 1) s.b = load_float(record + 4);
  return s;
}

// ---- Where a piece lies

struct Place {
  Job job;
  std::int64_t job_number;
  std::int64_t bucket_number;  // of the launch
  std::int64_t begin, m;       // the bucket: its first value in the job, its length
  std::int64_t from, count;    // the piece: its first value in the bucket, its length (0: none)
  std::int64_t pieces;         // of the bucket
  std::int64_t record;         // where its record starts, behind the table
};

__device__ __forceinline__ std::int64_t pieces_of(std::int64_t values) {
  return (values + piece_values - 1) / piece_values;
}

/// The job whose range of `before` holds `number`.
template <class Before>
__device__ __forceinline__ std::int32_t find_job(const Launch& launch, std::int64_t number, Before before) {
  std::int32_t low = 0, high = launch.job_count - 1;
  while (low < high) {
    const std::int32_t middle = (low + high + 1) / 2;
    if (before(launch.jobs[middle]) <= number)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

template <class Rule>
__device__ Place find_bucket(const Launch& launch, std::int32_t job_number, std::int64_t bucket,
                             std::int64_t part) {
  Place p;
  p.job = launch.jobs[job_number];
  p.job_number = job_number;
  p.bucket_number = p.job.buckets_before + bucket;
  p.begin = bucket * p.job.bucket;
  p.m = smaller(p.job.bucket, p.job.n - p.begin);
  p.from = part * piece_values;
  p.count = p.from < p.m ? smaller(piece_values, p.m - p.from) : 0;
  p.pieces = pieces_of(p.m);
  p.record = bucket * record_bytes(p.job.bucket, Rule::scale_count(launch), Rule::bits);
  return p;
}

template <class Rule>
__device__ Place find_piece(const Launch& launch, std::int64_t piece) {
  const std::int32_t j = find_job(launch, piece, [](const Job& job) { return job.pieces_before; });
  const std::int64_t each = pieces_of(launch.jobs[j].bucket);
  const std::int64_t in_job = piece - launch.jobs[j].pieces_before;
  return find_bucket<Rule>(launch, j, in_job / each, in_job % each);
}

// ---- What is coded: the rank's own values, or the mean of the contributions; plus the residual

template <class Rule>
struct Source {
  const Launch& launch;
  const Place& place;

  /// Values at .. at + 7 of the bucket, of which `left` exist.
  __device__ void load(std::int64_t at, std::int64_t left, float* v) const {
    const Job& job = place.job;
    if (left <= 0) {
      for (int k = 0; k < kEach; ++k) v[k] = 0.0f;
      return;
    }
    if (job.contributions == nullptr) {
      load_values(job.values + place.begin + at, left, v);
    } else {
      const std::int64_t words = code_words(place.m, Rule::bits);
      for (std::int32_t r = 0; r < launch.ranks; ++r) {
        const std::byte* encoding = job.contributions[r];
        const std::byte* record = encoding + Rule::table_bytes() + place.record;
        const Scales s = read_scales<Rule>(launch, record);
        const bool numbers = is_finite(s.a) && is_finite(s.b);
        Rule rule(launch, nullptr, encoding);
        rule.start(s);
        std::int32_t codes[kEach];
        load_codes<Rule::bits>(record + 4 * Rule::scale_count(launch), words, at, codes);
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
          const float q = numbers ? rule.value(codes[k]) : canonical_nan();
          v[k] = r == 0 ? q : v[k] + q;
        }
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] *= launch.weight;
    }
    if (job.residual != nullptr) {
      float residual[kEach];
      load_values(job.residual + place.begin + at, left, residual);
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] += residual[k];
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (k >= left) v[k] = 0.0f;
  }
};

// ---- Scanning

/// For h = 16, 8, 4, 2, 1: sum j += sum j+h. The result is lane 0's, given to all.
__device__ __forceinline__ float fold(float partial) {
#pragma unroll
  for (int h = kWarp / 2; h > 0; h /= 2) partial += __shfl_down_sync(kAll, partial, h);
  return __shfl_sync(kAll, partial, 0);
}

template <class Rule>
__device__ PieceScan scan_piece(const Launch& launch, const Place& place, float* tile) {
  const Source<Rule> source{launch, place};
  const Statistic statistic = Rule::statistic(launch);
  const int lane = lane_number();
  PieceScan scan;
  float sums[2] = {0, 0};
  for (std::int64_t at = 0; at < place.count; at += kTile) {
    float v[kEach];
    const std::int64_t mine = at + lane * kEach;
    source.load(place.from + mine, place.count - mine, v);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const std::int32_t magnitude_bits = ScalarLanes::bits(v[k]) & magnitude_mask;
      scan.largest = magnitude_bits > scan.largest ? magnitude_bits : scan.largest;
      scan.positive += mine + k < place.count && v[k] >= 0.0f;
    }
    if (statistic == Statistic::largest) continue;
    store_values(tile + lane * kEach, kEach, v);
    __syncwarp();
    for (int r = 0; r < kEach; ++r) {
      const float x = tile[r * kWarp + lane];
      if (statistic == Statistic::norm) {
        sums[0] = __fmaf_rn(x, x, sums[0]);
      } else if (statistic == Statistic::mean) {
        sums[0] += magnitude<ScalarLanes>(x);
      } else {
        sums[0] += x >= 0.0f ? x : 0.0f;
        sums[1] += x >= 0.0f ? 0.0f : x;
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int h = kWarp / 2; h > 0; h /= 2) {
    const std::int32_t other = __shfl_xor_sync(kAll, scan.largest, h);
    scan.largest = other > scan.largest ? other : scan.largest;
    scan.positive += __shfl_xor_sync(kAll, scan.positive, h);
  }
  scan.sum[0] = fold(sums[0]);
  scan.sum[1] = fold(sums[1]);
  return scan;
}

/// A bucket's scales from its scan; `positive` counts over all its pieces.
template <class Rule>
__device__ Scales scales_of(const Launch& launch, const PieceScan& scan, std::int64_t positive,
                            std::int64_t m) {
  const Scales none{canonical_nan(), canonical_nan()};
  if (scan.largest >= infinity_bits) return none;
  const float top = ScalarLanes::value(scan.largest);
  switch (Rule::statistic(launch)) {
    case Statistic::largest:
      return {top, top};
    case Statistic::norm: {
      const float root = is_finite(scan.sum[0]) ? __fsqrt_rn(scan.sum[0]) : 0.0f;
      const float norm = root > top ? root : top;
      return {norm, norm};
    }
    case Statistic::mean: {
      if (!is_finite(scan.sum[0])) return none;
      const float scale = mean(scan.sum[0], m);
      return {scale, scale};
    }
    default:
      if (!is_finite(scan.sum[0]) || !is_finite(scan.sum[1])) return none;
      return {mean(scan.sum[0], positive), mean(scan.sum[1], m - positive)};
  }
}

/// The scans of a bucket's pieces as one: block sums are summed by the rule of values.
__device__ PieceScan combine(const PieceScan* scans, std::int64_t pieces, std::int64_t* positive) {
  const int lane = lane_number();
  PieceScan out;
  std::int64_t count = 0;
  float upper[2] = {0, 0};
  for (std::int64_t begin = 0; begin < pieces; begin += FixedOrderSum::block) {
    const std::int64_t end = smaller(pieces, begin + FixedOrderSum::block);
    float sums[2] = {0, 0};
    for (std::int64_t i = begin + lane; i < end; i += kWarp) {
      out.largest = scans[i].largest > out.largest ? scans[i].largest : out.largest;
      count += scans[i].positive;
      for (int side = 0; side < 2; ++side) sums[side] += scans[i].sum[side];
    }
    for (int side = 0; side < 2; ++side) {
      out.sum[side] = fold(sums[side]);
      if (lane == begin / FixedOrderSum::block % kWarp) upper[side] += out.sum[side];
    }
  }
  if (pieces > FixedOrderSum::block)
    for (int side = 0; side < 2; ++side) out.sum[side] = fold(upper[side]);
#pragma unroll
  for (int h = kWarp / 2; h > 0; h /= 2) {
    const std::int32_t other = __shfl_xor_sync(kAll, out.largest, h);
    out.largest = other > out.largest ? other : out.largest;
    count += __shfl_xor_sync(kAll, count, h);
  }
  *positive = count;
  return out;
}

// ---- Coding

template <class Rule>
__device__ void code_piece(const Launch& launch, const Place& place, Scales scales) {
  const Job& job = place.job;
  const int lane = lane_number();
  const int scale_count = Rule::scale_count(launch);
  const bool numbers = is_finite(scales.a) && is_finite(scales.b);
  std::byte* record = job.bytes + Rule::table_bytes() + place.record;
  if (lane == 0 && place.from == 0) {
    if (scale_count > 0) store_word(record, __float_as_uint(numbers ? scales.a : canonical_nan()));
    if (scale_count > 1) store_word(record + 4, __float_as_uint(numbers ? scales.b : canonical_nan()));
    if (!numbers) *job.not_finite = 1;
  }
  Rule rule(launch, job.levels, job.bytes);
  rule.start(scales);
  const Source<Rule> source{launch, place};
  const std::int64_t words = code_words(place.m, Rule::bits);
  for (std::int64_t at = 0; at < place.count; at += kTile) {
    const std::int64_t mine = at + lane * kEach, left = place.count - mine, in_bucket = place.from + mine;
    float v[kEach];
    source.load(in_bucket, left, v);
    Philox4x32 draws{};
    if constexpr (Rule::dithered)
      draws = philox4x32(static_cast<std::uint32_t>((job.first + place.begin + in_bucket) / kEach),
                         job.tensor, launch.step, 2 * launch.rank + launch.round - 1, launch.seed,
                         static_cast<std::uint32_t>(RandomUse::codec));
    std::int32_t codes[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const auto half = static_cast<std::int32_t>(k % 2 ? draws.x[k / 2] >> 16 : draws.x[k / 2] & 0xffffu);
      codes[k] = numbers && k < left ? rule.code(v[k], half) : 0;
      v[k] = numbers ? v[k] - rule.value(codes[k]) : canonical_nan();
    }
    store_codes<Rule::bits>(record + 4 * scale_count, words, in_bucket, codes);
    if (job.residual != nullptr && left > 0) store_values(job.residual + place.begin + in_bucket, left, v);
  }
}

/// The grid's warps take pieces (or buckets) in turn.
template <class Body>
__device__ __forceinline__ void each_warp(std::int64_t total, Body body) {
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < total;
       i += warps)
    body(i);
}

enum class Phase { whole, scan, combine, code, count };

template <class Rule, Phase phase>
__global__ void __launch_bounds__(kWarp* kWarps)
    scaled_kernel(Launch launch, PieceScan* scans, Scales* scales, unsigned long long* counts) {
  __shared__ alignas(16) float tiles[kWarps][kTile];
  float* tile = tiles[threadIdx.x / kWarp];
  if constexpr (phase == Phase::combine) {
    each_warp(launch.buckets, [&](std::int64_t b) {
      const std::int32_t j = find_job(launch, b, [](const Job& job) { return job.buckets_before; });
      const Place place = find_bucket<Rule>(launch, j, b - launch.jobs[j].buckets_before, 0);
      const std::int64_t first_piece =
          place.job.pieces_before + (b - place.job.buckets_before) * pieces_of(place.job.bucket);
      std::int64_t positive = 0;
      const PieceScan scan = combine(scans + first_piece, place.pieces, &positive);
      const Scales s = scales_of<Rule>(launch, scan, positive, place.m);
      if (lane_number() == 0) scales[b] = s;
    });
  } else {
    each_warp(launch.pieces, [&](std::int64_t piece) {
      const Place place = find_piece<Rule>(launch, piece);
      if (place.count == 0) return;
      if constexpr (phase == Phase::code) {
        code_piece<Rule>(launch, place, scales[place.bucket_number]);
        return;
      }
      if constexpr (phase == Phase::count) {
        const Scales s = scales[place.bucket_number];
        if (!is_finite(s.a) || s.a == 0.0f) return;
        const Source<Rule> source{launch, place};
        for (std::int64_t at = 0; at < place.count; at += kTile) {
          const std::int64_t mine = at + lane_number() * kEach;
          float v[kEach];
          source.load(place.from + mine, place.count - mine, v);
          for (int k = 0; k < kEach; ++k)
            if (mine + k < place.count)
              atomicAdd(counts + 256 * place.job_number +
                            level_cell<ScalarLanes>(magnitude<ScalarLanes>(v[k]) / s.a),
                        1ull);
        }
        return;
      }
      const PieceScan scan = scan_piece<Rule>(launch, place, tile);
      if constexpr (phase == Phase::scan) {
        if (lane_number() == 0) scans[piece] = scan;
      } else {
        code_piece<Rule>(launch, place, scales_of<Rule>(launch, scan, scan.positive, place.m));
      }
    });
  }
}

template <class Rule, bool adds>
__global__ void __launch_bounds__(kWarp* kWarps) scaled_decode_kernel(Launch launch) {
  each_warp(launch.pieces, [&](std::int64_t piece) {
    const Place place = find_piece<Rule>(launch, piece);
    const std::byte* record = place.job.bytes + Rule::table_bytes() + place.record;
    const Scales s = read_scales<Rule>(launch, record);
    const bool numbers = is_finite(s.a) && is_finite(s.b);
    if (!numbers && lane_number() == 0 && place.count > 0) *place.job.not_finite = 1;
    Rule rule(launch, nullptr, place.job.bytes);
    rule.start(s);
    const std::int64_t words = code_words(place.m, Rule::bits);
    for (std::int64_t at = lane_number() * kEach; at < place.count; at += kTile) {
      const std::int64_t in_bucket = place.from + at, left = place.count - at;
      std::int32_t codes[kEach];
      load_codes<Rule::bits>(record + 4 * Rule::scale_count(launch), words, in_bucket, codes);
      float* to = place.job.out + place.begin + in_bucket;
      float v[kEach];
      if constexpr (adds) load_values(to, left, v);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const float q = numbers ? rule.value(codes[k]) : canonical_nan();
        v[k] = adds ? add<ScalarLanes>(v[k], q) : q;
      }
      store_values(to, left, v);
    }
  });
}

// ---- none, fp16, bf16: a bucket of the launch is a run of 64 values

__device__ __forceinline__ float decode_float(Kind kind, const std::byte* bytes, std::int64_t i) {
  if (kind == Kind::none) return canonical<ScalarLanes>(reinterpret_cast<const float*>(bytes)[i]);
  const std::uint16_t h = reinterpret_cast<const std::uint16_t*>(bytes)[i];
  return kind == Kind::fp16 ? from_fp16(h) : from_bf16(h);
}

template <bool encodes, bool adds>
__global__ void __launch_bounds__(kWarp* kWarps) float_kernel(Launch launch) {
  each_warp(launch.buckets, [&](std::int64_t b) {
    const Job job = launch.jobs[find_job(launch, b, [](const Job& one) { return one.buckets_before; })];
    const std::int64_t begin = (b - job.buckets_before) * job.bucket;
    for (std::int64_t i = begin + lane_number(); i < smaller(job.n, begin + job.bucket); i += kWarp) {
      if constexpr (!encodes) {
        const float q = decode_float(launch.kind, job.bytes, i);
        if (!is_finite(q)) *job.not_finite = 1;
        job.out[i] = adds ? add<ScalarLanes>(job.out[i], q) : q;
      } else {
        float v = 0;
        if (job.contributions == nullptr) {
          v = job.values[i];
        } else {
          for (std::int32_t r = 0; r < launch.ranks; ++r) {
            const float q = decode_float(launch.kind, job.contributions[r], i);
            v = r == 0 ? q : v + q;
          }
          v *= launch.weight;
        }
        if (job.residual != nullptr) v += job.residual[i];
        if (!is_finite(v)) *job.not_finite = 1;
        if (launch.kind == Kind::none)
          reinterpret_cast<float*>(job.bytes)[i] = canonical<ScalarLanes>(v);
        else
          reinterpret_cast<std::uint16_t*>(job.bytes)[i] =
              launch.kind == Kind::fp16 ? to_fp16(v) : to_bf16(v);
        if (job.residual != nullptr)
          job.residual[i] = canonical<ScalarLanes>(v - decode_float(launch.kind, job.bytes, i));
      }
    }
  });
}

// ---- topk: a warp takes a bucket

struct TopkPlace {
  Job job;
  std::int64_t begin, m, kept;
  std::byte* record;
};

__device__ TopkPlace find_topk(const Launch& launch, std::int64_t b) {
  TopkPlace p;
  p.job = launch.jobs[find_job(launch, b, [](const Job& one) { return one.buckets_before; })];
  const std::int64_t bucket = b - p.job.buckets_before;
  p.begin = bucket * p.job.bucket;
  p.m = smaller(p.job.bucket, p.job.n - p.begin);
  p.kept = topk_kept(launch.topk.density, p.m);
  p.record = p.job.bytes + bucket * 8 * topk_kept(launch.topk.density, p.job.bucket);
  return p;
}

__device__ __forceinline__ float topk_value(const Job& job, std::int64_t i) {
  return job.residual != nullptr ? job.values[i] + job.residual[i] : job.values[i];
}
__device__ __forceinline__ std::int32_t topk_key(float v) {
  return ScalarLanes::bits(canonical<ScalarLanes>(v)) & magnitude_mask;
}

__global__ void __launch_bounds__(kWarp* kWarps) topk_encode_kernel(Launch launch) {
  __shared__ std::uint32_t histograms[kWarps][256];
  std::uint32_t* histogram = histograms[threadIdx.x / kWarp];
  const int lane = lane_number();
  each_warp(launch.buckets, [&](std::int64_t b) {
    const TopkPlace p = find_topk(launch, b);
    // The kept-th largest key, eight bits at a time from the top: bits 31-24 (the sign's is 0), ..., 7-0.
    std::int32_t key = 0;
    std::int64_t ties = p.kept;
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = lane; i < 256; i += kWarp) histogram[i] = 0;
      __syncwarp();
      for (std::int64_t i = lane; i < p.m; i += kWarp) {
        const std::int32_t k = topk_key(topk_value(p.job, p.begin + i));
        if (shift == 24 || (k >> (shift + 8)) == (key >> (shift + 8)))
          atomicAdd(&histogram[k >> shift & 255], 1u);
      }
      __syncwarp();
      int digit = 255;
      for (; histogram[digit] < ties; --digit) ties -= histogram[digit];
      key |= digit << shift;
      __syncwarp();
    }
    std::int64_t written = 0;
    bool finite = true;
    for (std::int64_t at = 0; at < p.m; at += kWarp) {
      const std::int64_t i = at + lane;
      const bool exists = i < p.m;
      const float v = exists ? topk_value(p.job, p.begin + i) : 0.0f;
      const std::int32_t k = exists ? topk_key(v) : -1;
      const unsigned before = (1u << lane) - 1u;
      const unsigned tied = __ballot_sync(kAll, k == key);
      const bool keep = k > key || (k == key && __popc(tied & before) < ties);
      const unsigned kept = __ballot_sync(kAll, keep);
      if (keep) {
        const std::int64_t at_record = written + __popc(kept & before);
        store_word(p.record + 4 * at_record, static_cast<std::uint32_t>(i));
        store_word(p.record + 4 * (p.kept + at_record), __float_as_uint(canonical<ScalarLanes>(v)));
        finite &= is_finite(v);
      }
      if (exists && p.job.residual != nullptr)
        p.job.residual[p.begin + i] = canonical<ScalarLanes>(keep ? v - (v + 0.0f) : v);
      written += __popc(kept);
      ties -= smaller(ties, __popc(tied));
    }
    if (!finite) *p.job.not_finite = 1;
  });
}

__global__ void __launch_bounds__(kWarp* kWarps) topk_clear_kernel(Launch launch) {
  each_warp(launch.buckets, [&](std::int64_t b) {
    const TopkPlace p = find_topk(launch, b);
    for (std::int64_t i = lane_number(); i < p.m; i += kWarp) p.job.out[p.begin + i] = 0.0f;
  });
}

__global__ void __launch_bounds__(kWarp* kWarps) topk_decode_kernel(Launch launch) {
  each_warp(launch.buckets, [&](std::int64_t b) {
    const TopkPlace p = find_topk(launch, b);
    for (std::int64_t i = lane_number(); i < p.kept; i += kWarp) {
      const std::int64_t place = load_word(p.record + 4 * i);
      if (place >= p.m) continue;
      const float value = load_float(p.record + 4 * (p.kept + i));
      float& to = p.job.out[p.begin + place];
      to = add<ScalarLanes>(to, value);
      if (!is_finite(value)) *p.job.not_finite = 1;
    }
  });
}

__global__ void scale_kernel(float* values, std::int64_t n, float by) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads)
    values[i] *= by;
}

// ---- Launches

constexpr unsigned kThreads = kWarp * kWarps;

unsigned blocks_for(std::int64_t warps) {
  const std::int64_t blocks = (warps + kWarps - 1) / kWarps, most = 1 << 16;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Calls use(tag) with the rule that the launch names.
template <class Rule>
struct Tag {
  using type = Rule;
};

template <int width, class Use>
cudaError_t with_levels(const Launch& launch, Use use) {
  using Levels = QsgdOptions::Levels;
  switch (launch.qsgd.levels) {
    case Levels::interval:
      return use(Tag<QsgdRule<width, Levels::interval>>());
    case Levels::exponential:
      if constexpr (width <= 8) return use(Tag<QsgdRule<width, Levels::exponential>>());
      return cudaErrorInvalidValue;
    case Levels::optimal:
      if constexpr (width <= 8) return use(Tag<QsgdRule<width, Levels::optimal>>());
      return cudaErrorInvalidValue;
    default:
      return use(Tag<QsgdRule<width, Levels::sign_magnitude>>());
  }
}

template <class Use>
cudaError_t with_rule(const Launch& launch, Use use) {
  switch (launch.kind) {
    case Kind::onebit:
      return use(Tag<OnebitRule>());
    case Kind::sign:
      return use(Tag<SignRule>());
    case Kind::dynamic8:
      return use(Tag<Dynamic8Rule>());
    default:
      break;
  }
  switch (launch.qsgd.bits) {
    case 2:
      return with_levels<2>(launch, use);
    case 4:
      return with_levels<4>(launch, use);
    case 8:
      return with_levels<8>(launch, use);
    default:
      return with_levels<16>(launch, use);
  }
}

template <class Rule>
void scan_buckets(const Launch& launch, PieceScan* scans, Scales* scales, cudaStream_t stream) {
  scaled_kernel<Rule, Phase::scan>
      <<<blocks_for(launch.pieces), kThreads, 0, stream>>>(launch, scans, nullptr, nullptr);
  scaled_kernel<Rule, Phase::combine>
      <<<blocks_for(launch.buckets), kThreads, 0, stream>>>(launch, scans, scales, nullptr);
}

bool is_float(Kind kind) {
  return kind == Kind::none || kind == Kind::fp16 || kind == Kind::bf16;
}

}  // namespace

cudaError_t launch_encode(const Launch& launch, PieceScan* scans, Scales* scales, cudaStream_t stream) {
  if (launch.buckets == 0) return cudaSuccess;
  const unsigned by_bucket = blocks_for(launch.buckets);
  if (is_float(launch.kind)) {
    float_kernel<true, false><<<by_bucket, kThreads, 0, stream>>>(launch);
    return cudaGetLastError();
  }
  if (launch.kind == Kind::topk) {
    topk_encode_kernel<<<by_bucket, kThreads, 0, stream>>>(launch);
    return cudaGetLastError();
  }
  return with_rule(launch, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    const unsigned blocks = blocks_for(launch.pieces);
    if (launch.small) {
      scaled_kernel<Rule, Phase::whole><<<blocks, kThreads, 0, stream>>>(launch, nullptr, nullptr, nullptr);
    } else {
      scan_buckets<Rule>(launch, scans, scales, stream);
      scaled_kernel<Rule, Phase::code><<<blocks, kThreads, 0, stream>>>(launch, nullptr, scales, nullptr);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_decode(const Launch& launch, bool adds, cudaStream_t stream) {
  if (launch.buckets == 0) return cudaSuccess;
  const unsigned by_bucket = blocks_for(launch.buckets);
  if (is_float(launch.kind)) {
    const auto kernel = adds ? float_kernel<false, true> : float_kernel<false, false>;
    kernel<<<by_bucket, kThreads, 0, stream>>>(launch);
    return cudaGetLastError();
  }
  if (launch.kind == Kind::topk) {
    if (!adds) topk_clear_kernel<<<by_bucket, kThreads, 0, stream>>>(launch);
    topk_decode_kernel<<<by_bucket, kThreads, 0, stream>>>(launch);
    return cudaGetLastError();
  }
  return with_rule(launch, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    const auto kernel = adds ? scaled_decode_kernel<Rule, true> : scaled_decode_kernel<Rule, false>;
    kernel<<<blocks_for(launch.pieces), kThreads, 0, stream>>>(launch);
    return cudaGetLastError();
  });
}

cudaError_t launch_scale(float* values, std::int64_t n, float by, cudaStream_t stream) {
  if (n > 0) scale_kernel<<<blocks_for(n / kWarp + 1), kThreads, 0, stream>>>(values, n, by);
  return cudaGetLastError();
}

cudaError_t launch_count(const Launch& launch, PieceScan* scans, Scales* scales, unsigned long long* counts,
                         cudaStream_t stream) {
  if (launch.buckets == 0) return cudaSuccess;
  return with_rule(launch, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    if constexpr (Rule::dithered) {
      scan_buckets<Rule>(launch, scans, scales, stream);
      scaled_kernel<Rule, Phase::count>
          <<<blocks_for(launch.pieces), kThreads, 0, stream>>>(launch, nullptr, scales, counts);
      return cudaGetLastError();
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace lpsgd::cuda
