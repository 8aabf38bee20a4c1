// The codecs' CUDA kernels, as the host sees them: what a launch takes, and the launches. Plain types only,
// for nvcc and the host's compiler alike. Internal to quant/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quant/codecs/dynamic8_device.h"
#include "quant/codecs/onebit_device.h"
#include "quant/codecs/qsgd_device.h"
#include "quant/codecs/sign_device.h"
#include "quant/codecs/topk_device.h"

namespace lpsgd::cuda {

/// A run of whole buckets of one tensor. Everything points to device memory.
struct Job {
  const float* values = nullptr;                    // encode
  const std::byte* const* contributions = nullptr;  // reduce: `ranks` of them, instead of values
  float* residual = nullptr;                        // encode, reduce; or nullptr
  float* out = nullptr;                             // decode
  std::byte* bytes = nullptr;                       // the encoding: written, or read by decode
  std::uint32_t* non_finite = nullptr;              // set to 1 where a value is not
  double* error = nullptr;  // or nullptr: sums of squares, of the values and of what is lost
  float* means =
      nullptr;  // topk's reduce of buckets that do not fit shared memory: scratch, as long as the job
  std::int64_t n = 0, first = 0, bucket = 1;
  std::int64_t pieces_before = 0, buckets_before = 0;  // of the batch
  std::uint32_t tensor = 0;
  std::int32_t table = 0;  // its number among the batch's
};

enum class Kind : std::uint8_t { none, fp16, bf16, onebit, qsgd, sign, topk, dynamic8 };

/// A table of qsgd's optimal levels: unpacked, and its bytes.
struct DeviceTable {
  LevelTable levels;
  std::uint8_t bytes[128];
};

/// What a piece tells of its bucket.
struct PieceScan {
  std::int32_t largest = 0;   // bits of the largest magnitude
  std::int32_t positive = 0;  // values >= 0
  float sum[2] = {0, 0};
};
struct Scales {
  float a = 0, b = 0;  // a NaN: the bucket holds no numbers
};

/// What a launch's jobs share. They are jobs [job_first, job_last) of a batch, whose pieces and buckets begin
/// at these numbers of the batch.
struct Launch {
  Kind kind = Kind::none;
  QsgdOptions qsgd;
  SignOptions sign;
  TopkOptions topk;
  const Dynamic8Table* dynamic8 = nullptr;
  std::uint32_t seed = 0, step = 0, rank = 0, round = 1;
  const std::uint32_t* step_at = nullptr;  // where the step's number is, if not in `step`
  std::int32_t ranks = 0;                  // of contributions
  float weight = 1;                        // 1/ranks; decode of none: what values are multiplied by
  const Job* jobs = nullptr;
  std::int32_t job_first = 0, job_last = 0;
  std::int64_t piece_first = 0, pieces = 0;
  std::int64_t bucket_first = 0, buckets = 0;
  bool large = false;  // some bucket is more than one piece
  // Scratch memory of the batch: for its pieces and buckets where `large`, and for its tables.
  PieceScan* scans = nullptr;
  Scales* scales = nullptr;
  DeviceTable* tables = nullptr;         // of what is encoded; nullptr: nothing is
  std::int32_t table_count = 0;          // how many
  unsigned long long* counts = nullptr;  // 256 a table
};

/// A piece is what a warp takes at once: a bucket of up to `piece_values`, a part of a larger one, or several
/// small ones. `none`, `fp16` and `bf16` have pieces of tile_values, whatever their buckets.
inline constexpr std::int64_t piece_values = 4096;  // a block of the fixed-order sum
inline constexpr std::int64_t tile_values = 256;
/// topk's buckets that fit.
inline constexpr std::int64_t topk_shared_values = 4096;
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

// Queue the work of all jobs on the stream. With contributions, encode is the owner's step.
cudaError_t encode_floats(const Launch& launch, cudaStream_t stream);
cudaError_t encode_onebit(const Launch& launch, cudaStream_t stream);
cudaError_t encode_qsgd(const Launch& launch, cudaStream_t stream);
cudaError_t encode_sign(const Launch& launch, cudaStream_t stream);
cudaError_t encode_topk(const Launch& launch, cudaStream_t stream);
cudaError_t encode_dynamic8(const Launch& launch, cudaStream_t stream);
cudaError_t decode_floats(const Launch& launch, bool adds, cudaStream_t stream);
cudaError_t decode_onebit(const Launch& launch, bool adds, cudaStream_t stream);
cudaError_t decode_qsgd(const Launch& launch, bool adds, cudaStream_t stream);
cudaError_t decode_sign(const Launch& launch, bool adds, cudaStream_t stream);
cudaError_t decode_topk(const Launch& launch, bool adds, cudaStream_t stream);
cudaError_t decode_dynamic8(const Launch& launch, bool adds, cudaStream_t stream);
cudaError_t check_floats(const Launch& launch, cudaStream_t stream);

/// From launch.counts to launch.tables.
cudaError_t choose_level_tables(const Launch& launch, std::int32_t tables, cudaStream_t stream);

struct Transpositions {
  static constexpr int most = 16;
  struct One {
    const float* from;
    float* to;
    std::int64_t outer, rows, columns;
    std::int64_t tiles_before;
  } jobs[most];
  int count = 0;
  std::int64_t tiles = 0;
};
inline constexpr int transposed_tile = 32;
cudaError_t transpose(const Transpositions& jobs, cudaStream_t stream);

}  // namespace lpsgd::cuda
