// A tensor of the exchange. The caller owns the gradients; the coder (comm/coder.h) owns residuals and all
// other state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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
  std::size_t residual1 = 0;     // values of the residuals kept: `elements` or 0,
  std::size_t residual2 = 0;     // those of the own stripe or 0; both in the codec's order

  // Of this step so far.
  bool own_finite = true;  // this rank's own gradient, plus residual
  bool mean_finite = true;
};

/// Whether the codec's order of this tensor differs from memory order.
bool is_permuted(const TensorInfo& tensor, const CodecSpec& codec);

/// The tensor with this number as one of `ranks` ranks exchanges it, without its gradient. `returns_mean`:
/// owners encode means, and keep residuals of them.
ExchangeTensor make_exchange_tensor(const TensorInfo& info, const CodecSpec& codec, std::size_t number,
                                    int rank, int ranks, bool returns_mean);

}  // namespace lpsgd
