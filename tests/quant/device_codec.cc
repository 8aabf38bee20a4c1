#include "tests/quant/device_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lpsgd {

using namespace codec_cases;

std::vector<float> crowded(std::int64_t n, std::uint32_t seed) {
  std::vector<float> out = inputs(n, 0, seed);
  for (std::size_t i = 8192; i < std::min<std::size_t>(out.size(), 11'000); ++i) out[i] *= 64;
  return out;
}

std::vector<float> values_of(std::int64_t n, int kind, std::uint32_t seed) {
  if (kind > kinds) return crowded(n, seed);
  std::vector<float> out = inputs(n, kind == kinds ? 0 : kind, seed);
  if (kind == kinds && n > 0) {
    out[out.size() / 2] = std::nanf("");
    out[out.size() / 3] = -std::numeric_limits<float>::infinity();
  }
  return out;
}

namespace {

struct Tensor {
  Codec host;
  std::int64_t n = 0;
  std::vector<float> values, residual = {};
  std::vector<Bytes> sent = {};                 // by rank
  std::vector<const std::byte*> received = {};  // the same on the device
};

}  // namespace

void DeviceCodec::compare(const std::string& text, int kind, const std::vector<std::int64_t>& all) {
  const CodecSpec spec = spec_of(text);
  const bool feedback = kind % 2 == 0;
  const std::size_t ranks = std::vector<std::size_t>{1, 2, 3, 5}[static_cast<std::size_t>(kind % 4)];
  SCOPED_TRACE(text + ", kind " + std::to_string(kind));
  std::vector<Tensor> tensors;
  std::vector<CodingJob> encode, reduce, decode;
  memory_.clear();
  auto* flags = room<std::uint32_t>(3 * all.size());
  for (const std::int64_t n : all) {
    const std::size_t t = tensors.size();
    Tensor& tensor = tensors.emplace_back(codec_of(spec, n), n, values_of(n, kind, 1));
    tensor.residual = values_of(n, kind == kinds ? 0 : kind, 2);
    const std::size_t bytes = tensor.host.encoded_bytes(n);
    // Every third begins where nothing is aligned.
    const std::size_t odd_values = t % 3 == 1 ? sizeof(float) : 0, odd_bytes = t % 3 == 1 ? 2 : 0;
    const CodingJob job = tensor.host.job(0, n, t);
    encode.push_back(job);
    // Without feedback other values come first.
    encode.back().values = up(feedback ? tensor.values : values_of(n, 0, 3), odd_values);
    encode.back().residual = feedback ? up(tensor.residual, odd_values) : nullptr;
    encode.back().bytes = room<std::byte>(bytes, odd_bytes);
    encode.back().non_finite = flags + 3 * t;
    reduce.push_back(job);
    reduce.back().residual = feedback ? up(tensor.residual, odd_values) : nullptr;
    reduce.back().bytes = room<std::byte>(bytes, odd_bytes);
    reduce.back().non_finite = flags + 3 * t + 1;
    for (std::size_t r = 0; r < ranks; ++r) {
      CodingContext c = base;
      c.rank = static_cast<std::uint32_t>(r);
      c.round = 1;
      tensor.sent.push_back(
          codec_cases::encode(tensor.host, values_of(n, kind, 10 + c.rank), {}, c, job.tensor).bytes);
      tensor.received.push_back(up(tensor.sent.back(), odd_bytes));
    }
    reduce.back().contributions = tensor.received.data();  // stays there when `tensors` grows
    reduce.back().ranks = static_cast<std::int32_t>(ranks);
    decode.push_back(job);
    decode.back().bytes = encode.back().bytes;
    decode.back().out = room<float>(static_cast<std::size_t>(n), odd_values);
    decode.back().non_finite = flags + 3 * t + 2;
  }
  CudaBatch encodes(spec, device, encode), reduces(spec, device, reduce), decodes(spec, device, decode);
  encodes.encode(base, stream());
  if (!feedback)  // what a launch leaves behind is what the next one needs
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::vector<float>& values = tensors[t].values;
      copy_bytes(const_cast<float*>(encode[t].values), values.data(), values.size() * sizeof(float),
                 stream());
    }
  if (!feedback) encodes.encode(base, stream());
  reduces.reduce(base, stream());
  decodes.decode(0, std::min<std::size_t>(5, tensors.size()), false, stream());
  decodes.decode(std::min<std::size_t>(5, tensors.size()), tensors.size(), false, stream());
  const auto seen = down(flags, 3 * tensors.size());
  std::vector<std::vector<float>> means;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    SCOPED_TRACE("n " + std::to_string(tensors[t].n));
    const Tensor& tensor = tensors[t];
    const Codec& host = tensor.host;
    const auto size = static_cast<std::size_t>(tensor.n);
    const auto number = static_cast<std::uint32_t>(t);
    Bytes expected;
    std::vector<float> residual = feedback ? tensor.residual : std::vector<float>(), decoded(size);
    const bool finite = host.encode(encoding(host, tensor.values, residual, expected, number), base);
    ASSERT_TRUE(same_bytes(down(encode[t].bytes, expected.size()), expected)) << "encode";
    if (feedback) {
      ASSERT_TRUE(same_bytes(down(encode[t].residual, size), residual)) << "encode's residual";
    }
    ASSERT_EQ(seen[3 * t] == 0, finite);
    const bool decoded_finite = host.decode(decoding(host, expected, decoded));
    ASSERT_TRUE(same_bytes(down(decode[t].out, size), decoded)) << "decode";
    ASSERT_EQ(seen[3 * t + 2] == 0, decoded_finite);

    std::vector<const std::byte*> contributions;
    for (const Bytes& sent : tensor.sent) contributions.push_back(sent.data());
    residual = feedback ? tensor.residual : std::vector<float>();
    host.reduce(reduction(host, contributions, tensor.n, residual, expected, number), base);
    ASSERT_TRUE(same_bytes(down(reduce[t].bytes, expected.size()), expected)) << "reduce";
    if (feedback) {
      ASSERT_TRUE(same_bytes(down(reduce[t].residual, size), residual)) << "reduce's residual";
    }
    means.push_back(decoded);
  }
  decodes.decode(0, tensors.size(), true, stream());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Codec& host = tensors[t].host;
    Bytes bytes = down(decode[t].bytes, host.encoded_bytes(tensors[t].n));
    host.decode(decoding(host, bytes, means[t]), true);
    ASSERT_TRUE(same_bytes(down(decode[t].out, means[t].size()), means[t])) << "decode and add";
  }
}

}  // namespace lpsgd
