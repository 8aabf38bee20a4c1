// Codecs on a CUDA device: the same bytes as the CPU's, many jobs in one launch. Only in builds with CUDA.
//
// Values, residuals and outputs are read and written 16 bytes at a time where they are aligned to that, as
// arenas are. Encodings may lie at any even address; kernels read all of the 32-bit words that they lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "quant/codec.h"
#include "quant/cuda/codec_kernels.h"

namespace lpsgd {

/// The device memory that so many bytes of encodings need: whole words.
constexpr std::size_t encoding_room(std::size_t bytes) {
  return (bytes + 3) / 4 * 4;
}

/// Jobs of one codec, copied to the device once. A call copies nothing and the host never waits: all else are
/// launch arguments. Work is queued on the given stream; use one stream at a time.
class CudaBatch {
 public:
  /// Of a codec that has tables, what one is made of when values are encoded: all jobs of a tensor, or a job.
  enum class Tables : std::uint8_t { of_tensors, of_jobs };
  /// The jobs' pointers are device memory, but `contributions` points to an array on the host, which is
  /// copied. All jobs of a reduction have the same number of ranks.
  CudaBatch(const CodecSpec& spec, Device device, std::span<const CodingJob> jobs,
            Tables tables = Tables::of_tensors);
  CudaBatch(const CudaBatch&) = delete;
  CudaBatch& operator=(const CudaBatch&) = delete;

  /// Codec::encode, Codec::reduce and Codec::decode of jobs. A codec with tables makes one for each job when
  /// it reduces. With `step`, in device memory, the kernels read the step's number there instead of
  /// context.step, so that the work can be captured (core/capture.h).
  void encode(const CodingContext& context, StreamView stream, const std::uint32_t* step = nullptr);
  void reduce(const CodingContext& context, StreamView stream, const std::uint32_t* step = nullptr) {
    encode(context, stream, step);
  }
  /// Jobs [first, last). With codec none, decoded values times `weight`.
  void decode(std::size_t first, std::size_t last, bool add, StreamView stream, float weight = 1.0f);
  /// Codec none: flags non-finite values of `out`; NaNs become the canonical one.
  void check(StreamView stream);

 private:
  std::vector<cuda::Job> number(std::span<const CodingJob> jobs, std::int64_t table, Tables tables);
  void make_topk_scratch(StreamView stream);

  const Device device_;
  const CodecOptions options_;
  const cuda::CodecKernels kernels_;
  cuda::Launch all_;                                          // of all jobs
  std::vector<std::int64_t> pieces_before_, buckets_before_;  // of each job, and of all
  DeviceBuffer<cuda::Job> jobs_;
  DeviceBuffer<const std::byte*> contributions_;
  DeviceBuffer<std::uint32_t> ignored_;  // the flag of jobs without one
  DeviceBuffer<std::byte> constants_;
  DeviceBuffer<cuda::PieceScan> scans_;
  DeviceBuffer<cuda::Scales> scales_;
  DeviceBuffer<std::uint32_t> scanned_;
  DeviceBuffer<cuda::DeviceTable> tables_;
  DeviceBuffer<unsigned long long> counts_;
  std::int64_t large_buckets_ = 0;  // topk's
  DeviceBuffer<cuda::TopkState> topk_states_;
  DeviceBuffer<cuda::TopkPiece> topk_pieces_;
  DeviceBuffer<float> topk_values_;
  DeviceBuffer<std::uint16_t> topk_positions_;
};

/// One launch for every sixteen jobs. All memory is the device's.
void cuda_transpose(std::span<const Transposition> jobs, StreamView stream);

}  // namespace lpsgd
