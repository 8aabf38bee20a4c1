#include "comm/exchange_tensor.h"

#include "comm/exchange_plan.h"

namespace lpsgd {

bool is_permuted(const TensorInfo& tensor, const CodecSpec& codec) {
  const TensorInfo::Columns columns = tensor.columns();
  return codec.bucket == BucketSize::column && columns.rows > 1 && columns.columns > 1;
}

ExchangeTensor make_exchange_tensor(const TensorInfo& info, const CodecSpec& codec, std::size_t number,
                                    int rank, int ranks, bool returns_mean) {
  ExchangeTensor tensor;
  tensor.info = info;
  tensor.codec = make_codec(codec, info);
  tensor.wire_bytes = encoded_bytes_of_stripes(*tensor.codec, info.elements, ranks);
  tensor.untouched = codec.is_none() && ranks == 1;
  tensor.permuted = is_permuted(info, codec);
  tensor.own = stripe_of(rank, info.elements, tensor.codec->bucket(), ranks, number);
  if (!tensor.codec->error_feedback()) return tensor;
  tensor.residual1 = static_cast<std::size_t>(info.elements);
  if (returns_mean) tensor.residual2 = static_cast<std::size_t>(tensor.own.last - tensor.own.first);
  return tensor;
}

}  // namespace lpsgd
