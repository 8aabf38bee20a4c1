#include "tests/comm/exchange_reference.h"

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"

namespace lpsgd {
namespace {

CodecSpec onebit(std::int64_t bucket) {
  CodecSpec spec;
  spec.kind = CodecSpec::Kind::onebit;
  spec.bucket = bucket;
  spec.error_feedback = true;
  return spec;
}

CodecSpec qsgd(std::int64_t bits, std::int64_t bucket, CodecSpec::Norm norm = CodecSpec::Norm::max,
               bool error_feedback = false) {
  CodecSpec spec;
  spec.kind = CodecSpec::Kind::qsgd;
  spec.bits = bits;
  spec.bucket = bucket;
  spec.norm = norm;
  spec.error_feedback = error_feedback;
  return spec;
}

bool is_matrix(const TensorInfo& tensor) {
  return (tensor.kind == TensorKind::dense || tensor.kind == TensorKind::lstm) && tensor.shape.size() == 2;
}

std::int64_t bucket_of(const TensorInfo& tensor, const CodecSpec& codec) {
  if (codec.kind == CodecSpec::Kind::none) return 64;
  if (codec.bucket == CodecSpec::whole_tensor) return tensor.elements;
  if (codec.bucket != CodecSpec::column) return codec.bucket;
  if (tensor.kind == TensorKind::conv) return tensor.shape[3];
  if (is_matrix(tensor)) return tensor.shape[0];
  return tensor.elements;
}

/// Where in memory (O-H-W-I, out x in) each value of the codec's order lies.
std::vector<std::size_t> memory_index(const TensorInfo& tensor, const CodecSpec& codec) {
  std::vector<std::size_t> index;
  const auto& s = tensor.shape;
  if (codec.bucket == CodecSpec::column && tensor.kind == TensorKind::conv) {
    for (std::int64_t o = 0; o < s[0]; ++o)
      for (std::int64_t h = 0; h < s[2]; ++h)
        for (std::int64_t i = 0; i < s[1]; ++i)
          for (std::int64_t w = 0; w < s[3]; ++w)
            index.push_back(static_cast<std::size_t>(((o * s[2] + h) * s[3] + w) * s[1] + i));
  } else if (codec.bucket == CodecSpec::column && is_matrix(tensor)) {
    for (std::int64_t in = 0; in < s[1]; ++in)
      for (std::int64_t out = 0; out < s[0]; ++out)
        index.push_back(static_cast<std::size_t>(out * s[1] + in));
  } else {
    for (std::int64_t e = 0; e < tensor.elements; ++e) index.push_back(static_cast<std::size_t>(e));
  }
  return index;
}

}  // namespace

const std::vector<NamedCodec>& tested_codecs() {
  static const std::vector<NamedCodec> codecs{
      {"none", CodecSpec{}},
      {"onebit64", onebit(64)},
      {"onebit_column", onebit(CodecSpec::column)},
      {"qsgd2", qsgd(2, 128)},
      {"qsgd4", qsgd(4, 512)},
      {"qsgd8", qsgd(8, 512)},
      {"qsgd16", qsgd(16, 8192)},
      {"qsgd4_l2_feedback", qsgd(4, 96, CodecSpec::Norm::l2, true)},
      {"qsgd8_tensor", qsgd(8, CodecSpec::whole_tensor)},
  };
  return codecs;
}

ExchangeSetup make_setup(const std::string& codec) {
  ExchangeSetup setup;
  const auto add = [&](const char* name, TensorKind kind, std::vector<std::int64_t> shape) {
    TensorInfo tensor;
    tensor.name = name;
    tensor.kind = kind;
    tensor.elements = 1;
    for (const std::int64_t d : shape) tensor.elements *= d;
    tensor.shape = std::move(shape);
    tensor.offset = static_cast<std::int64_t>(setup.arena);
    setup.arena += static_cast<std::size_t>((tensor.elements + 15) / 16 * 16 + 16);
    setup.order.insert(setup.order.begin(), setup.tensors.size());  // backward: the last comes first
    setup.tensors.push_back(std::move(tensor));
  };
  add("conv1.weight", TensorKind::conv, {8, 3, 3, 5});
  add("bn1.weight", TensorKind::norm, {8});
  add("scale", TensorKind::bias, {1});
  add("fc1.weight", TensorKind::dense, {20, 1031});
  add("fc1.bias", TensorKind::bias, {65});
  add("conv2.weight", TensorKind::conv, {16, 8, 1, 1});
  add("fc2.weight", TensorKind::dense, {37, 53});
  add("fc2.bias", TensorKind::bias, {63});
  std::swap(setup.order[2], setup.order[3]);

  const auto& tested = tested_codecs();
  for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
    if (codec == "mixed") {
      setup.codecs.push_back(tested[(t * 5 + 2) % tested.size()].spec);
      continue;
    }
    const auto named =
        std::find_if(tested.begin(), tested.end(), [&](const auto& c) { return c.name == codec; });
    require(named != tested.end(), "the test asks for a codec that it does not list");
    setup.codecs.push_back(named->spec);
  }
  return setup;
}

std::uint64_t ExchangeSetup::elements() const {
  std::uint64_t n = 0;
  for (const TensorInfo& tensor : tensors) n += static_cast<std::uint64_t>(tensor.elements);
  return n;
}

std::vector<float> ExchangeSetup::gradients(int rank, std::uint32_t step) const {
  PhiloxSequence random(5, RandomUse::dataset, step, static_cast<std::uint32_t>(rank));
  std::vector<float> values(arena);
  for (float& value : values) value = (random.uniform() - 0.5f) * (random.uniform() + 0.1f);
  return values;
}

ExchangeReference::ExchangeReference(const ExchangeSetup& setup, int ranks)
    : setup_(setup), ranks_(ranks), residual1_(static_cast<std::size_t>(ranks)) {
  for (const TensorInfo& tensor : setup.tensors) {
    const std::vector<float> zeros(static_cast<std::size_t>(tensor.elements));
    for (auto& of_rank : residual1_) of_rank.push_back(zeros);
    residual2_.push_back(zeros);
  }
}

std::vector<float> ExchangeReference::step() {
  const auto ranks = static_cast<std::size_t>(ranks_);
  std::vector<std::vector<float>> gradients;
  for (int r = 0; r < ranks_; ++r) gradients.push_back(setup_.gradients(r, step_));
  std::vector<float> means = gradients[0];  // the gaps of the arena are nobody's; compared as rank 0's
  for (std::size_t t = 0; t < setup_.tensors.size(); ++t) {
    const TensorInfo& tensor = setup_.tensors[t];
    const auto codec = make_codec(setup_.codecs[t]);
    const bool feedback = setup_.codecs[t].error_feedback;
    const std::int64_t bucket = bucket_of(tensor, setup_.codecs[t]);
    const std::int64_t buckets = (tensor.elements + bucket - 1) / bucket;
    const auto index = memory_index(tensor, setup_.codecs[t]);
    const auto offset = static_cast<std::size_t>(tensor.offset);
    for (std::int64_t b = 0; b < buckets; ++b) {
      const std::int64_t first = b * bucket, n = std::min(bucket, tensor.elements - first);
      const auto f = static_cast<std::size_t>(first), m = static_cast<std::size_t>(n);
      std::vector<std::byte> bytes(codec->encoded_bytes(n, bucket));
      std::vector<float> values(m), sum(m), mean(m);
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < m; ++i) values[i] = gradients[r][offset + index[f + i]];
        const CodingContext context{setup_.seed, static_cast<std::uint32_t>(t), step_,
                                    static_cast<std::uint32_t>(r), 1};
        codec->encode(values.data(), feedback ? residual1_[r][t].data() + f : nullptr, n, first, bucket,
                      context, bytes.data());
        codec->decode(bytes.data(), n, bucket, false, values.data());
        for (std::size_t i = 0; i < m; ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
      }
      for (float& value : sum) value *= 1.0f / static_cast<float>(ranks_);
      std::int64_t stripe = 0;
      while (!(stripe * buckets / ranks_ <= b && b < (stripe + 1) * buckets / ranks_)) ++stripe;
      const auto owner = static_cast<std::uint32_t>((static_cast<std::size_t>(stripe) + t) % ranks);
      const CodingContext context{setup_.seed, static_cast<std::uint32_t>(t), step_, owner, 2};
      codec->encode(sum.data(), feedback ? residual2_[t].data() + f : nullptr, n, first, bucket, context,
                    bytes.data());
      codec->decode(bytes.data(), n, bucket, false, mean.data());
      for (std::size_t i = 0; i < m; ++i) means[offset + index[f + i]] = mean[i];
    }
  }
  ++step_;
  return means;
}

std::vector<std::vector<float>> reference_means(const ExchangeSetup& setup, int ranks, std::uint32_t steps) {
  ExchangeReference reference(setup, ranks);
  std::vector<std::vector<float>> means;
  for (std::uint32_t s = 0; s < steps; ++s) means.push_back(reference.step());
  return means;
}

}  // namespace lpsgd
