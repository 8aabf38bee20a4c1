// Codecs on a CUDA device: the same bytes as the CPU's, many tensors a launch. Only in builds with CUDA.
//
// All addresses are device memory. Values, residuals and outputs are read and written 16 bytes at a time
// where they are aligned to that (arenas are); encodings start at multiples of 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/device.h"
#include "quant/codec.h"

namespace lpsgd {

/// A run of whole buckets of one tensor: Codec::encode's and Codec::decode's arguments.
struct CudaCodecJob {
  const float* values = nullptr;                    // encode
  std::span<const std::byte* const> contributions;  // reduce: the encodings, on the device, in rank order
  float* residual = nullptr;                        // encode, reduce; or nullptr
  float* out = nullptr;                             // decode
  std::byte* bytes = nullptr;                       // the encoding: written, or read by decode
  const std::byte* table = nullptr;                 // encode: Codec::make_table's, on the host; or nullptr
  std::int64_t n = 0, first = 0, bucket = 1;
  std::uint32_t tensor = 0;
};

/// One codec on one device. Work is queued on the stream given; one queue at a time.
class CudaCodec {
 public:
  CudaCodec(const CodecSpec& spec, Device device);
  ~CudaCodec();
  CudaCodec(const CudaCodec&) = delete;
  CudaCodec& operator=(const CudaCodec&) = delete;

  /// Codec::encode of every job. `context.tensor` and `context.table` are the jobs'. A codec with a table
  /// makes those that are not given, for which the host waits. `not_finite` (device memory, one word a job,
  /// zeroed by the caller) becomes 1 where encode would return false.
  void encode(std::span<const CudaCodecJob> jobs, const CodingContext& context, std::uint32_t* not_finite,
              StreamView stream);
  /// Codec::decode of every job; `not_finite` likewise.
  void decode(std::span<const CudaCodecJob> jobs, bool add, std::uint32_t* not_finite, StreamView stream);
  /// Codec::reduce of every job, all with the same number of contributions.
  void reduce(std::span<const CudaCodecJob> jobs, const CodingContext& context, std::uint32_t* not_finite,
              StreamView stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
