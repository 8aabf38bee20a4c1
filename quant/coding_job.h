// A run of whole buckets of one tensor, to be coded together with others of the same codec on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lpsgd {

/// The arguments of Codec::encode, reduce or decode; all memory is the device's. Encodings lie at even
/// addresses. Runs of one `tensor` share the table of a codec that has one: its first run begins the tensor.
struct CodingJob {
  const float* values = nullptr;                // encode
  std::vector<const std::byte*> contributions;  // reduce, in rank order: instead of values
  float* residual = nullptr;                    // encode, reduce; or nullptr
  float* out = nullptr;                         // decode
  std::byte* bytes = nullptr;                   // the encoding: written, or read by decode
  std::uint32_t* non_finite = nullptr;          // becomes 1 where the codec's function returns false
  double* error = nullptr;  // encode, or nullptr: adds the squares of the values and of what coding lost
  std::int64_t n = 0, first = 0, bucket = 1;
  std::uint32_t tensor = 0;
};

/// `outer` matrices of rows x columns, to be transposed.
struct Transposition {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t outer = 0, rows = 0, columns = 0;
};

}  // namespace lpsgd
