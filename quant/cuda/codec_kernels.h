// The host's interface to the codecs' CUDA kernels: a launch's arguments, and each codec's launches. Without
// CUDA's headers. Internal to quant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/codecs/qsgd_device.h"
#include "quant/coding_job.h"

struct CUstream_st;  // cudaStream_t

namespace lpsgd::cuda {

/// Unit::piece, when encoding: how many pieces (of `kept` buckets) of a job are whole, which are its first
/// ones. None counts as whole if an address does not allow loads of 16 bytes for values and of 4 for records,
/// or if the bucket is not CodecKernels::whole_bucket (of `kept`: not a multiple of a tile). `before`: those
/// of the jobs before in the batch that are whole, and that are not.
struct Wholes {
  std::int64_t whole = 0, whole_before = 0, rest_before = 0;
};

/// A job of a batch. Everything points to device memory, also the array of contributions.
struct Job : CodingJob {
  std::int64_t pieces_before = 0, buckets_before = 0;  // in the batch
  std::int64_t kept_before = 0;                        // buckets of Launch::kept_buckets, likewise
  std::int64_t large_before = 0;                       // Unit::bucket: larger ones
  Wholes small, kept;             // of buckets of up to small_values, and of larger ones of up to kept_values
  std::int32_t table_number = 0;  // its number among the batch's
};

/// A table of qsgd's optimal levels: unpacked, and its bytes. Of up to 4 bits also what each lane of a warp
/// keeps: the level below each of eight cells, four bits each; and of interval `lane` the lower level, the
/// width and its reciprocal.
struct DeviceTable {
  LevelTable levels;
  std::uint8_t bytes[128];
  std::uint32_t cells[32];
  float lower[32], width[32], inverse[32];
};

/// The result of scanning a piece.
struct alignas(16) PieceScan {
  std::int32_t max = 0;       // bits of the largest magnitude
  std::int32_t positive = 0;  // how many values are >= 0
  float sum[2] = {0, 0};
};
struct Scales {
  float a = 0, b = 0;  // NaN: a value of the bucket is not finite
};

/// topk: the search for the threshold of a bucket above shared_values, by digits of 11, 10 and 10 bits.
struct TopkState {
  static constexpr int digits = 1 << 11;
  std::uint32_t counts[digits];  // of keys by their next digit; 0 between launches
  std::uint32_t pieces;          // that are counted; 0 between launches
  std::int32_t key;              // the digits found so far; the others are 0
  std::uint32_t ties;            // how many are kept of the values that begin with them
};
/// A piece of such a bucket.
struct TopkPiece {
  std::uint32_t candidates = 0;       // values whose first digit is at least the threshold's
  std::uint32_t above = 0, tied = 0;  // before the piece in its bucket: above the threshold, equal to it
};
/// Scratch memory: a state for each bucket; for each piece room for `slot` candidates, those of the pieces
/// that do not have more.
struct TopkScratch {
  TopkState* states = nullptr;
  TopkPiece* pieces = nullptr;
  float* values = nullptr;             // with the residual
  std::uint16_t* positions = nullptr;  // in the piece, ascending
  std::int32_t slot = 0;
};

/// A launch's arguments: jobs [job_first, job_last) of a batch. Pieces and buckets are numbered within the
/// batch; the launch's begin at piece_first and bucket_first.
struct Launch {
  CodingContext context;
  const std::uint32_t* step_at = nullptr;  // the step's number; nullptr: context.step
  std::int32_t ranks = 0;                  // contributions of each job; 0: it codes its own values
  float weight = 1;                        // 1/ranks, for means; decode of none multiplies values by it
  const void* constants = nullptr;         // what CodecKernels::constants returned
  const Job* jobs = nullptr;
  std::int32_t job_first = 0, job_last = 0;
  std::int64_t piece_first = 0, pieces = 0;
  std::int64_t bucket_first = 0, buckets = 0;
  // When encoding, of Unit::piece: pieces of buckets of up to small_values, and buckets that have more but at
  // most kept_values, of all jobs; the warps that share one of these, and whether some have more.
  struct {
    std::int64_t whole = 0, rest = 0;
  } small, kept;
  std::int64_t kept_buckets = 0;  // of Unit::bucket
  std::int32_t team_warps = 1;
  bool large = false;
  bool errors = false;  // some job has CodingJob::error
  std::int32_t multiprocessors = 1;
  // Scratch memory of the batch: for its pieces and buckets where `large`, and for its tables.
  PieceScan* scans = nullptr;
  Scales* scales = nullptr;
  std::uint32_t* scanned = nullptr;      // how many of a bucket's pieces; 0 between launches
  DeviceTable* tables = nullptr;         // of what is encoded; nullptr when decoding
  std::int32_t table_count = 0;          // how many
  unsigned long long* counts = nullptr;  // 256 a table
  TopkScratch topk;                      // of what is encoded
};

/// A codec's launches: its column of the codecs' table. Errors are left to cudaGetLastError().
struct CodecKernels {
  /// What one group of threads handles at once.
  enum class Unit : std::uint8_t {
    tile,    // 256 values, whatever the buckets: a warp's
    piece,   // of a bucket, or several small buckets (piece_length): a warp's
    bucket,  // a block's; larger ones than shared_values in pieces
  };

  /// Queue the work of all the launch's jobs. With contributions, encode is the owner's step.
  void (*encode)(const Launch&, const CodecOptions&, CUstream_st*) = nullptr;
  void (*decode)(const Launch&, const CodecOptions&, bool adds, CUstream_st*) = nullptr;
  Unit unit = Unit::piece;
  std::int64_t whole_bucket = 0;  // Unit::piece: the small bucket whose whole pieces have code of their own
  /// Bytes that all buckets read; a batch copies them to the device. nullptr: none.
  std::span<const std::byte> (*constants)(const CodecOptions&) = nullptr;
};

/// A piece is a bucket of up to `piece_values`, a part of a larger one, or several small ones.
inline constexpr std::int64_t piece_values = 4096;  // a block of the fixed-order sum
inline constexpr std::int64_t tile_values = 256;
/// Unit::piece: a warp's registers keep buckets of up to small_values, a block's shared memory those of up to
/// kept_values. A team of 1, 2, 4 or 8 warps of the block has team_values a warp.
inline constexpr std::int64_t small_values = 512, team_values = 1024, kept_values = 8 * team_values;
/// Unit::bucket: buckets of up to so many values are in Launch::kept_buckets; a block's registers keep
/// them. Only larger ones have pieces.
inline constexpr std::int64_t shared_values = piece_values;
/// TopkScratch::slot: values of the first digit lie within an eighth of each other, so few of a piece are
/// candidates beside those that are kept, unless large values crowd in it.
inline std::int32_t topk_slot(double density) {
  const std::int64_t room = (4 * topk_kept(density, piece_values) + 95) / 32 * 32;
  return static_cast<std::int32_t>(room < piece_values ? room : piece_values);
}
/// Buckets of 32, 64 or 128 share a tile.
LPSGD_HD bool shares_tile(std::int64_t bucket) {
  return bucket == 32 || bucket == 64 || bucket == 128;
}
/// Values of a piece of these buckets.
LPSGD_HD std::int64_t piece_length(std::int64_t bucket) {
  return shares_tile(bucket) ? tile_values : bucket < piece_values ? bucket : piece_values;
}
/// Pieces of n values.
LPSGD_HD std::int64_t piece_count(std::int64_t n, std::int64_t bucket) {
  if (bucket <= piece_values) return (n + piece_length(bucket) - 1) / piece_length(bucket);
  return n / bucket * ((bucket + piece_values - 1) / piece_values) +
         (n % bucket + piece_values - 1) / piece_values;
}

/// Codec none: flags non-finite values of `out`; NaNs become the canonical one.
void check_floats(const Launch& launch, CUstream_st* stream);

/// topk: the launch's pieces, those of buckets above shared_values.
void encode_topk_pieces(const Launch& launch, const TopkOptions& options, CUstream_st* stream);
void decode_topk_pieces(const Launch& launch, const TopkOptions& options, bool adds, CUstream_st* stream);

struct Transpositions {
  static constexpr int max_count = 16;
  struct One : Transposition {
    std::int64_t tiles_before = 0;
  } jobs[max_count];
  int count = 0;
  std::int64_t tiles = 0;
};
inline constexpr int transposed_tile = 32;
void transpose(const Transpositions& jobs, CUstream_st* stream);

}  // namespace lpsgd::cuda
