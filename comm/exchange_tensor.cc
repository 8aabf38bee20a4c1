#include "comm/exchange_tensor.h"

#include "comm/exchange_plan.h"

namespace lpsgd {

bool is_permuted(const TensorInfo& tensor, const CodecSpec& codec) {
  const TensorInfo::Columns columns = tensor.columns();
  return codec.bucket == BucketSize::column && columns.rows > 1 && columns.columns > 1;
}

std::vector<Stripe> encoded_stripes(std::int64_t elements, std::int64_t bucket, const RankBlocks& blocks,
                                    int rank, std::size_t tensor) {
  std::vector<Stripe> out = stripes(elements, bucket, blocks.ranks, tensor);
  std::erase_if(out, [&](const Stripe& s) { return blocks.place_of(s.owner) != blocks.place_of(rank); });
  return out;
}

ExchangeTensor make_exchange_tensor(const TensorInfo& info, const CodecSpec& codec, std::size_t number,
                                    int rank, const RankBlocks& blocks, bool returns_mean) {
  ExchangeTensor tensor;
  tensor.info = info;
  tensor.codec = make_codec(codec, info);
  tensor.wire_bytes = encoded_bytes_of_stripes(*tensor.codec, info.elements, blocks.ranks);
  tensor.untouched = codec.is_none() && blocks.ranks == 1;
  tensor.permuted = is_permuted(info, codec);
  const std::int64_t bucket = tensor.codec->bucket();
  tensor.own = stripe_of(rank, info.elements, bucket, blocks.ranks, number);
  if (!tensor.codec->error_feedback()) return tensor;
  tensor.residual1_shift.resize(static_cast<std::size_t>(blocks.count()));
  std::int64_t kept = 0;
  for (const Stripe& stripe : encoded_stripes(info.elements, bucket, blocks, rank, number)) {
    tensor.residual1_shift[static_cast<std::size_t>(blocks.block_of(stripe.owner))] = kept - stripe.first;
    kept += stripe.last - stripe.first;
  }
  tensor.residual1 = static_cast<std::size_t>(kept);
  if (returns_mean) tensor.residual2 = static_cast<std::size_t>(tensor.own.last - tensor.own.first);
  return tensor;
}

}  // namespace lpsgd
