// The exchange of all ranks at once, as docs/numerics.md defines it: slow and obvious, one bucket at a time,
// without chunks or messages. It only uses the codec for single buckets (and for their tables).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/rank_blocks.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

/// A made-up network: tensors of awkward sizes, in an arena with gaps, and one codec each.
struct ExchangeSetup {
  std::vector<TensorInfo> tensors;
  std::vector<CodecSpec> codecs;
  std::vector<std::size_t> order;  // of announcement
  std::size_t arena = 0;
  std::uint32_t seed = 11;

  std::uint64_t elements() const;
  /// Rank `rank`'s gradients of step `step`.
  std::vector<float> gradients(int rank, std::uint32_t step) const;
};

struct NamedCodec {
  const char* name;
  CodecSpec spec;
};
/// The codecs under test.
const std::vector<NamedCodec>& tested_codecs();
/// All tensors with `codec`; with "mixed", each with another one.
ExchangeSetup make_setup(const std::string& codec);

class ExchangeReference {
 public:
  ExchangeReference(const ExchangeSetup& setup, const RankBlocks& ranks);
  /// The next step's mean, as an arena. Updates the residuals.
  std::vector<float> step();

 private:
  const ExchangeSetup& setup_;
  const RankBlocks blocks_;
  std::uint32_t step_ = 0;
  std::vector<std::vector<std::vector<float>>> residual1_;  // block, tensor
  std::vector<std::vector<float>> residual2_;               // tensor
};

/// The first `steps` means.
std::vector<std::vector<float>> reference_means(const ExchangeSetup& setup, const RankBlocks& ranks,
                                                std::uint32_t steps);

}  // namespace lpsgd
