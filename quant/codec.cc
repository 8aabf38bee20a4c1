#include "quant/codec.h"

#include <algorithm>

namespace lpsgd {

namespace {

/// Copies `outer` matrices of rows x columns transposed; tiles keep both sides in cache.
void transpose(std::int64_t outer, std::int64_t rows, std::int64_t columns, const float* in, float* out) {
  constexpr std::int64_t tile = 16;
  for (std::int64_t o = 0; o < outer; ++o, in += rows * columns, out += rows * columns)
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile)
      for (std::int64_t c0 = 0; c0 < columns; c0 += tile)
        for (std::int64_t c = c0; c < std::min(columns, c0 + tile); ++c)
          for (std::int64_t r = r0; r < std::min(rows, r0 + tile); ++r)
            out[c * rows + r] = in[r * columns + c];
}

}  // namespace

void to_column_order(const TensorInfo::Columns& shape, const float* memory, float* encoded) {
  transpose(shape.outer, shape.rows, shape.columns, memory, encoded);
}

void from_column_order(const TensorInfo::Columns& shape, const float* encoded, float* memory) {
  transpose(shape.outer, shape.columns, shape.rows, encoded, memory);
}

std::vector<Stripe> stripes(std::int64_t elements, std::int64_t bucket, int ranks, std::size_t tensor) {
  const std::int64_t buckets = (elements + bucket - 1) / bucket;
  std::vector<Stripe> out(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    Stripe& stripe = out[static_cast<std::size_t>(r)];
    stripe.first = std::min(elements, buckets * r / ranks * bucket);
    stripe.last = std::min(elements, buckets * (r + 1) / ranks * bucket);
    stripe.owner = static_cast<int>((static_cast<std::size_t>(r) + tensor) % static_cast<std::size_t>(ranks));
  }
  return out;
}

}  // namespace lpsgd
