// What to code: consecutive whole buckets of one tensor. Codecs on the CPU and kernels on the GPU use the
// same struct, which holds only numbers and pointers. A job for a device points to that device's memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lpsgd {

/// Codec::job() fills in size and bucket; the caller adds the pointers that the operation needs.
struct CodingJob {
  const float* values = nullptr;                    // encode: n values
  const std::byte* const* contributions = nullptr;  // reduce: the encodings of `ranks` ranks, in rank order
  std::int32_t ranks = 0;
  float* residual = nullptr;   // encode, reduce: n values, not those of `values`; nullptr: none is kept
  float* out = nullptr;        // decode: n values
  std::byte* bytes = nullptr;  // the encoding: encode and reduce write it, decode reads it
  const std::byte* table =
      nullptr;                    // encode on the CPU: the tensor's table; nullptr: it is made from `values`
  std::int64_t n = 0, first = 0;  // elements [first, first + n) of the tensor, in the codec's order
  std::int64_t bucket = 0;        // values per bucket; `first` is a multiple of it
  std::uint32_t tensor = 0;       // its number in the network's order

  // Only on a device.
  std::uint32_t* non_finite = nullptr;  // set to 1 if the CPU's codec would return false; or nullptr
  double* error = nullptr;  // encode adds two sums of squares: of the values, of their error; or nullptr
};

/// Seed, step, rank and round of a coding: with a job's tensor and element the dither's counter
/// (docs/numerics.md).
struct CodingContext {
  std::uint32_t seed = 0;
  std::uint32_t step = 0;   // from 0
  std::uint32_t rank = 0;   // the encoding rank: in round 2 the owner
  std::uint32_t round = 1;  // 1: worker to owner; 2: owner to all
};

/// `outer` matrices of rows x columns, to be transposed.
struct Transposition {
  const float* from = nullptr;
  float* to = nullptr;
  std::int64_t outer = 0, rows = 0, columns = 0;
};

}  // namespace lpsgd
