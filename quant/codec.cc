#include "quant/codec.h"

#include <algorithm>

#include "core/buffer.h"
#include "core/error.h"

namespace lpsgd {

bool Codec::reduce(std::span<const std::byte* const> contributions, float* residual, std::int64_t n,
                   std::int64_t first, std::int64_t bucket, const CodingContext& context,
                   std::byte* out) const {
  require(!contributions.empty(), "a mean over no ranks");
  // Whole buckets at a time, few enough that their sum stays in the first-level cache.
  constexpr std::int64_t cached_values = 4096;
  const std::int64_t chunk = bucket * std::max<std::int64_t>(1, cached_values / bucket);
  thread_local Buffer<float> scratch;
  const auto wanted = static_cast<std::size_t>(std::min(n, chunk));
  if (scratch.size() < wanted) scratch = Buffer<float>(wanted);
  float* sum = scratch.data();

  const float weight = 1.0f / static_cast<float>(contributions.size());
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t m = std::min(chunk, n - begin);
    const std::size_t offset = encoded_bytes(begin, bucket);
    for (std::size_t r = 0; r < contributions.size(); ++r)
      decode(contributions[r] + offset, m, bucket, r > 0, sum);
    for (std::int64_t i = 0; i < m; ++i) sum[i] *= weight;
    finite &=
        encode(sum, residual ? residual + begin : nullptr, m, first + begin, bucket, context, out + offset);
  }
  return finite;
}

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
