// The values that `lpsgd bench exchange` compares its results with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/rank_blocks.h"
#include "core/buffer.h"
#include "quant/codec.h"

namespace lpsgd {

/// The mean of all ranks' values, fill_like_gradients(values, rank), as docs/numerics.md defines it. It only
/// uses the codec's encode and decode, one stripe after the other. With the collective `simulated` ranks do
/// not communicate: one rank's values are encoded and decoded.
class ExchangeExpectation {
 public:
  static constexpr std::uint32_t seed = 1;  // of the dither

  /// `alone`: with the collective `simulated`, the rank whose values are used.
  ExchangeExpectation(const CodecSpec& spec, std::int64_t n, const RankBlocks& ranks,
                      std::optional<int> alone);
  /// Steps from 0 on, in order: residuals are kept. `mean` has n values.
  void step(std::uint32_t step, std::span<float> mean);

 private:
  void contribute(std::uint32_t step, int block, bool add, std::span<float> to);
  void code(const Stripe& s, const float* from, float* left, const CodingContext& context,
            const std::byte* table, bool add, float* to);
  float* residual(int block);  // behind the last block: round 2's

  std::shared_ptr<const Codec> codec_;
  std::int64_t n_;
  RankBlocks blocks_;
  std::optional<int> alone_;
  std::vector<Stripe> stripes_;
  Buffer<std::byte> table_, record_;
  Buffer<float> values_, more_;
  std::vector<Buffer<float>> residuals_;
};

}  // namespace lpsgd
