// Every codec once more, as docs/numerics.md and docs/wire-format.md say it: one value at a time, in plain
// C++, sharing nothing with quant/ but the options' structs.
#pragma once

#include <cstddef>
#include <vector>

#include "quant/codec.h"

namespace lpsgd::slow {

struct Coded {
  std::vector<std::byte> bytes;
  std::vector<float> residual;  // v less what the bytes decode to
  std::vector<float> decoded;
  bool finite = true;  // encode's answer
};

/// The values of a whole tensor, in buckets of bucket >= 1; `residual` is empty or as long.
Coded encode(const CodecSpec& spec, const std::vector<float>& values, const std::vector<float>& residual,
             std::int64_t bucket, const CodingContext& context, std::uint32_t tensor);

/// 256 times the levels of qsgd's table for these values, the last one 256.
std::vector<int> optimal_levels(const CodecSpec& spec, const std::vector<float>& values, std::int64_t bucket);

/// The magnitudes of an mx element type's codes, ascending up to its largest.
std::vector<double> mx_magnitudes(MxOptions::Element element);

}  // namespace lpsgd::slow
