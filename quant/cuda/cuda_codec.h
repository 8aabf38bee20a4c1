// Codecs on a CUDA device: the same bytes as the CPU's, many runs of buckets in one launch. Only in builds
// with CUDA.
//
// Values, residuals and outputs are read and written 16 bytes at a time where they are aligned to that, as
// arenas are. Encodings may lie at any even address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "quant/codec.h"
#include "quant/cuda/codec_kernels.h"

namespace lpsgd {

/// Jobs of one codec, put on the device once. All else that a call needs are launch arguments, so nothing is
/// copied and the host never waits. Work is queued on the stream given; one stream at a time.
class CudaBatch {
 public:
  /// The jobs' pointers are device memory, but `contributions` points to an array on the host, which is
  /// copied. Runs of one tensor share the table of a codec that has one: the jobs hold all of the tensor. The
  /// jobs of a reduction come from one number of ranks.
  CudaBatch(const CodecSpec& spec, Device device, std::span<const CodingJob> jobs);
  CudaBatch(const CudaBatch&) = delete;
  CudaBatch& operator=(const CudaBatch&) = delete;

  /// Codec::encode, Codec::reduce and Codec::decode of jobs. A codec with a table makes one for all jobs of a
  /// tensor when it encodes, and one for each job when it reduces. With `step`, device memory, the step's
  /// number is what is there when the work is done, so that the work can be captured (core/capture.h), and
  /// context.step is not read.
  void encode(const CodingContext& context, StreamView stream, const std::uint32_t* step = nullptr);
  void reduce(const CodingContext& context, StreamView stream, const std::uint32_t* step = nullptr) {
    encode(context, stream, step);
  }
  /// Jobs [first, last). With codec none, decoded values times `weight`.
  void decode(std::size_t first, std::size_t last, bool add, StreamView stream, float weight = 1.0f);
  /// Codec none: looks for values of `out` that are not finite; NaNs become the canonical one.
  void check(StreamView stream);

 private:
  std::vector<cuda::Job> number(std::span<const CodingJob> jobs);

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
  DeviceBuffer<cuda::DeviceTable> tables_;
  DeviceBuffer<unsigned long long> counts_;
  DeviceBuffer<float> means_;
};

/// One launch for every sixteen. All memory is the device's.
void cuda_transpose(std::span<const Transposition> jobs, StreamView stream);

}  // namespace lpsgd
