// Codecs on a CUDA device: the same bytes as the CPU's, many runs of buckets a launch. Only in builds with
// CUDA.
//
// Values, residuals and outputs are read and written 16 bytes at a time where they are aligned to that, as
// arenas are; encodings may lie at any even address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "quant/codec.h"
#include "quant/coding_job.h"

namespace lpsgd {

/// Jobs of one codec, put on the device once; what a call needs beside them are launch arguments, so nothing
/// is copied and the host never waits. Work is queued on the stream given; one stream at a time.
class CudaBatch {
 public:
  CudaBatch(const CodecSpec& spec, Device device, std::span<const CodingJob> jobs);
  ~CudaBatch();
  CudaBatch(const CudaBatch&) = delete;
  CudaBatch& operator=(const CudaBatch&) = delete;

  /// Codec::encode, Codec::reduce and Codec::decode of jobs; `context.tensor` and `context.table` are the
  /// jobs'. A codec with a table makes one for all jobs of a tensor when it encodes, and one for each job
  /// when it reduces. With `step`, device memory, the step's number is what is there when the work is done,
  /// so that the work can be captured (core/capture.h); context.step is not looked at.
  void encode(const CodingContext& context, StreamView stream, const std::uint32_t* step = nullptr);
  void reduce(const CodingContext& context, StreamView stream, const std::uint32_t* step = nullptr);
  /// Jobs [first, last). With codec none, decoded values times `weight`.
  void decode(std::size_t first, std::size_t last, bool add, StreamView stream, float weight = 1.0f);
  /// Codec none: looks for values of `out` that are not finite; NaNs become the canonical one.
  void check(StreamView stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One launch for every sixteen.
void cuda_transpose(std::span<const Transposition> jobs, StreamView stream);

}  // namespace lpsgd
