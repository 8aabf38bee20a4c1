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
  const LevelTable* levels = nullptr;               // of an encoding with a table
  std::uint32_t* not_finite = nullptr;              // set to 1 where a value is not
  std::int64_t n = 0, first = 0, bucket = 1;
  std::int64_t pieces_before = 0, buckets_before = 0;  // of the launch
  std::uint32_t tensor = 0;
};

enum class Kind : std::uint8_t { none, fp16, bf16, onebit, qsgd, sign, topk, dynamic8 };

/// What a launch's jobs share.
struct Launch {
  Kind kind = Kind::none;
  QsgdOptions qsgd;
  SignOptions sign;
  TopkOptions topk;
  const Dynamic8Table* dynamic8 = nullptr;  // device memory
  std::uint32_t seed = 0, step = 0, rank = 0, round = 1;
  std::int32_t ranks = 0;  // of contributions
  float weight = 1;        // 1/ranks
  const Job* jobs = nullptr;
  std::int32_t job_count = 0;
  std::int64_t pieces = 0;  // runs of at most piece_values of one bucket
  std::int64_t buckets = 0;
  bool small = true;  // every bucket is one piece
};
inline constexpr std::int64_t piece_values = 4096;  // a block of the fixed-order sum

/// What a piece tells of its bucket.
struct PieceScan {
  std::int32_t largest = 0;   // bits of the largest magnitude
  std::int32_t positive = 0;  // values >= 0
  float sum[2] = {0, 0};
};
struct Scales {
  float a = 0, b = 0;  // a NaN: the bucket holds no numbers
};

/// Queue the work of all jobs on the stream. `scans` and `scales` are device memory for `pieces` and
/// `buckets` entries, wanted unless `small`. none, fp16, bf16 and topk count no pieces but buckets.
cudaError_t launch_encode(const Launch& launch, PieceScan* scans, Scales* scales, cudaStream_t stream);
cudaError_t launch_decode(const Launch& launch, bool adds, cudaStream_t stream);
/// Adds the histograms of qsgd's magnitudes to counts[256 * job]. First of all with `small` false: scans.
cudaError_t launch_count(const Launch& launch, PieceScan* scans, Scales* scales, unsigned long long* counts,
                         cudaStream_t stream);
/// values[i] *= by.
cudaError_t launch_scale(float* values, std::int64_t n, float by, cudaStream_t stream);

}  // namespace lpsgd::cuda
