// What the exchange keeps per tensor: codec, gradient, residuals, and how far the step has come with it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/buffer.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

struct ExchangeTensor {
  TensorInfo info;
  std::shared_ptr<const Codec> codec;
  std::int64_t bucket = 1;
  float* gradient = nullptr;  // in memory order
  Stripe own;                 // the stripe this rank owns
  Buffer<float> residual1;    // `elements` values in the codec's order, or empty
  Buffer<float> residual2;    // of the own stripe, or empty
  Buffer<float> staging;      // the gradient in the codec's order, where that is not memory order
  Buffer<std::byte> table;    // of a codec with one: this step's
  bool untouched = false;     // none on one rank: the gradient is its own mean

  bool staged = false;         // this step's gradient is in `staging`
  bool tabled = false;         // and its table in `table`
  std::int64_t undecoded = 0;  // elements whose mean is still to come
  bool own_finite = true;      // this rank's own gradient, plus residual
  bool mean_finite = true;

  bool permuted() const { return !staging.empty(); }
  /// The gradient in the codec's order: read before, written after the exchange.
  float* values() { return permuted() ? staging.data() : gradient; }
  float* residual1_at(std::int64_t first) { return residual1.empty() ? nullptr : residual1.data() + first; }
  float* residual2_at(std::int64_t first) {
    return residual2.empty() ? nullptr : residual2.data() + (first - own.first);
  }

  void begin_step() {
    staged = tabled = false;
    undecoded = info.elements;
    own_finite = mean_finite = true;
  }
  /// Call before the first read of values() in a step.
  void stage() {
    if (!permuted() || staged) return;
    to_column_order(info.columns(), gradient, staging.data());
    staged = true;
  }
  /// The table of the whole tensor's gradient and residual; nullptr where the codec has none. Call before the
  /// first stripe is encoded in a step, because encoding changes the residual.
  const std::byte* stage_table() {
    if (table.empty()) return nullptr;
    if (!tabled) codec->make_table(values(), residual1_at(0), info.elements, bucket, table.data());
    tabled = true;
    return table.data();
  }
  /// Call after `n` values of the mean have been written.
  void decoded(std::int64_t n) {
    undecoded -= n;
    if (permuted() && undecoded == 0) from_column_order(info.columns(), staging.data(), gradient);
  }
};

/// Whether the codec's order of this tensor differs from memory order.
bool is_permuted(const TensorInfo& tensor, const CodecSpec& codec);

}  // namespace lpsgd
