// A tensor of the exchange. The caller owns the gradients; the coder (comm/coder.h) owns residuals and all
// other state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/rank_blocks.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

struct ExchangeTensor {
  TensorInfo info;
  std::shared_ptr<const Codec> codec;  // the CPU's; with a device used for sizes only
  float* gradient = nullptr;     // in memory order; in device memory if ExchangeOptions::device is a GPU
  Stripe own;                    // the stripe this rank owns
  std::uint64_t wire_bytes = 0;  // of one encoded copy
  bool untouched = false;        // codec none on one rank: the gradient is its own mean
  bool permuted = false;         // the codec's order is not memory order
  std::size_t residual1 = 0;     // values of the residuals kept: of the stripes that this rank encodes, or 0,
  std::size_t residual2 = 0;     // those of the own stripe or 0; both in the codec's order
  /// Of the owners at this rank's place, whose stripes it encodes: what to add to an element's number for its
  /// number in the residual of round 1.
  std::vector<std::int64_t> residual1_shift;
  /// Where the element of a stripe that is owned in this block lies in the residual of round 1, if one is
  /// kept.
  std::int64_t in_residual1(std::int64_t element, int block) const {
    return element + residual1_shift[static_cast<std::size_t>(block)];
  }

  // Of this step so far.
  bool own_finite = true;  // this rank's own gradient, plus residual
  bool mean_finite = true;
};

/// Whether the codec's order of this tensor differs from memory order.
bool is_permuted(const TensorInfo& tensor, const CodecSpec& codec);

/// The stripes of a tensor that a rank encodes in round 1, those of the owners at its place, in the order of
/// their elements: without blocks all.
std::vector<Stripe> encoded_stripes(std::int64_t elements, std::int64_t bucket, const RankBlocks& blocks,
                                    int rank, std::size_t tensor);

/// The tensor with this number as one of the ranks exchanges it, without its gradient. `returns_mean`:
/// owners encode means, and keep residuals of them.
ExchangeTensor make_exchange_tensor(const TensorInfo& info, const CodecSpec& codec, std::size_t number,
                                    int rank, const RankBlocks& blocks, bool returns_mean);

}  // namespace lpsgd
