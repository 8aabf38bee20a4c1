#include "tests/comm/exchange_reference.h"

#include <algorithm>

#include "core/error.h"
#include "core/philox.h"

namespace lpsgd {
namespace {

CodecSpec spec_of(const char* text) {
  return parse_codec(config::parse_text(text, "test"), "codec");
}

bool is_matrix(const TensorInfo& tensor) {
  return (tensor.kind == TensorKind::dense || tensor.kind == TensorKind::lstm) && tensor.shape.size() == 2;
}

std::int64_t bucket_of(const TensorInfo& tensor, const CodecSpec& codec) {
  if (codec.is_none()) return 64;
  if (codec.bucket == BucketSize::tensor) return tensor.elements;
  if (codec.bucket != BucketSize::column) return codec.bucket.count;
  if (tensor.kind == TensorKind::conv) return tensor.shape[3];
  if (is_matrix(tensor)) return tensor.shape[0];
  return tensor.elements;
}

/// Where in memory (O-H-W-I, out x in) each value of the codec's order lies.
std::vector<std::size_t> memory_index(const TensorInfo& tensor, const CodecSpec& codec) {
  std::vector<std::size_t> index;
  const auto& s = tensor.shape;
  if (codec.bucket == BucketSize::column && tensor.kind == TensorKind::conv) {
    for (std::int64_t o = 0; o < s[0]; ++o)
      for (std::int64_t h = 0; h < s[2]; ++h)
        for (std::int64_t i = 0; i < s[1]; ++i)
          for (std::int64_t w = 0; w < s[3]; ++w)
            index.push_back(static_cast<std::size_t>(((o * s[2] + h) * s[3] + w) * s[1] + i));
  } else if (codec.bucket == BucketSize::column && is_matrix(tensor)) {
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
      {"onebit64", spec_of("onebit")},
      {"onebit_column", spec_of("{kind: onebit, bucket: column}")},
      {"qsgd2", spec_of("{kind: qsgd, bits: 2}")},
      {"qsgd4", spec_of("{kind: qsgd, bits: 4}")},
      {"qsgd8", spec_of("{kind: qsgd, bits: 8}")},
      {"qsgd16", spec_of("{kind: qsgd, bits: 16}")},
      {"qsgd4_l2_feedback", spec_of("{kind: qsgd, bits: 4, bucket: 96, norm: l2, error_feedback: true}")},
      {"qsgd8_tensor", spec_of("{kind: qsgd, bits: 8, bucket: tensor}")},
      {"interval", spec_of("{kind: qsgd, bits: 4, levels: interval, error_feedback: true}")},
      {"exponential", spec_of("{kind: qsgd, bits: 8, levels: exponential, bucket: 64}")},
      {"optimal", spec_of("{kind: qsgd, bits: 2, levels: optimal, bucket: 96}")},
      {"optimal_feedback",
       spec_of("{kind: qsgd, bits: 4, levels: optimal, bucket: 64, error_feedback: true}")},
      {"sign", spec_of("sign")},
      {"sign_bucket", spec_of("{kind: sign, bucket: 64, error_feedback: false}")},
      {"majority", spec_of("{kind: sign, bucket: 96, majority: true}")},
      {"topk", spec_of("{kind: topk, density: 0.05, bucket: 128}")},
      {"topk_tensor", spec_of("{kind: topk, density: 0.02, bucket: tensor}")},
      {"dynamic8", spec_of("{kind: dynamic8, bucket: 512, error_feedback: true}")},
      {"mx", spec_of("{kind: mx, bucket: 64}")},
      {"mx_nearest", spec_of("{kind: mx, element: e4m3, rounding: nearest, error_feedback: true}")},
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

ExchangeReference::ExchangeReference(const ExchangeSetup& setup, const RankBlocks& ranks)
    : setup_(setup), blocks_(ranks), residual1_(static_cast<std::size_t>(ranks.count())) {
  for (const TensorInfo& tensor : setup.tensors) {
    const std::vector<float> zeros(static_cast<std::size_t>(tensor.elements));
    for (auto& of_block : residual1_) of_block.push_back(zeros);
    residual2_.push_back(zeros);
  }
}

std::vector<float> ExchangeReference::step() {
  const int ranks = blocks_.ranks;
  std::vector<std::vector<float>> gradients;  // of each block: the mean of its ranks
  std::vector<float> means;                   // gaps of the arena keep rank 0's values
  for (int r = 0; r < ranks; ++r) {
    const std::vector<float> own = setup_.gradients(r, step_);
    if (r == 0) means = own;
    if (blocks_.place_of(r) == 0) {
      gradients.push_back(own);
    } else {
      for (std::size_t i = 0; i < own.size(); ++i) gradients.back()[i] += own[i];
    }
    if (blocks_.size > 1 && blocks_.place_of(r) == blocks_.size - 1)
      for (float& value : gradients.back()) value *= 1.0f / static_cast<float>(blocks_.size);
  }
  for (std::size_t t = 0; t < setup_.tensors.size(); ++t) {
    const TensorInfo& tensor = setup_.tensors[t];
    const bool feedback = setup_.codecs[t].error_feedback;
    const std::int64_t bucket = bucket_of(tensor, setup_.codecs[t]);
    const Codec codec(setup_.codecs[t], bucket);
    const std::int64_t buckets = (tensor.elements + bucket - 1) / bucket;
    const auto index = memory_index(tensor, setup_.codecs[t]);
    const auto offset = static_cast<std::size_t>(tensor.offset);
    // The stripes and their owners.
    struct Owned {
      std::int64_t begin, end;
      int owner;
    };
    std::vector<Owned> stripes;
    for (std::int64_t stripe = 0; stripe < ranks; ++stripe)
      stripes.push_back(
          {std::min(tensor.elements, stripe * buckets / ranks * bucket),
           std::min(tensor.elements, (stripe + 1) * buckets / ranks * bucket),
           static_cast<int>((static_cast<std::size_t>(stripe) + t) % static_cast<std::size_t>(ranks))});
    // Round 1: every block's buckets, decoded and added. The rank at the owner's place encodes them.
    std::vector<float> mean(static_cast<std::size_t>(tensor.elements));
    std::vector<std::byte> bytes(codec.encoded_bytes(std::min(bucket, tensor.elements)));
    std::vector<std::byte> table(codec.table_bytes());
    std::vector<float> decoded(static_cast<std::size_t>(bucket));
    const auto job_of = [&](std::int64_t first, std::int64_t n, const float* values, float* residual) {
      CodingJob job = codec.job(first, n, t);
      job.values = values + first;
      job.residual = residual ? residual + first : nullptr;
      job.table = table.data();
      job.bytes = bytes.data();
      job.out = decoded.data();
      return job;
    };
    const auto make_table = [&](std::int64_t first, std::int64_t n, const float* values, float* residual) {
      codec.make_table(job_of(first, n, values, residual), table.data());
    };
    const auto code = [&](std::int64_t first, std::int64_t n, const float* values, float* residual,
                          const CodingContext& context) {
      codec.encode(job_of(first, n, values, residual), context);
      codec.decode(job_of(first, n, values, residual));
    };
    for (int b = 0; b < blocks_.count(); ++b) {
      std::vector<float> values(mean.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = gradients[static_cast<std::size_t>(b)][offset + index[i]];
      float* residual = feedback ? residual1_[static_cast<std::size_t>(b)][t].data() : nullptr;
      if (blocks_.size == 1) make_table(0, tensor.elements, values.data(), residual);
      for (const auto& [begin, end, owner] : stripes) {
        if (blocks_.size > 1) make_table(begin, end - begin, values.data(), residual);
        const int encoder = blocks_.rank_at(b, blocks_.place_of(owner));
        const CodingContext context{setup_.seed, step_, static_cast<std::uint32_t>(encoder), 1};
        for (std::int64_t first = begin; first < end; first += bucket) {
          const std::int64_t n = std::min(bucket, end - first);
          code(first, n, values.data(), residual, context);
          for (std::int64_t i = 0; i < n; ++i) {
            float& sum = mean[static_cast<std::size_t>(first + i)];
            const float q = decoded[static_cast<std::size_t>(i)];
            sum = b == 0 ? q : sum + q;
          }
        }
      }
    }
    for (float& value : mean) value *= 1.0f / static_cast<float>(blocks_.count());
    // Round 2: each owner's buckets.
    for (const auto& [begin, end, owner] : stripes) {
      float* residual = feedback ? residual2_[t].data() : nullptr;
      make_table(begin, end - begin, mean.data(), residual);
      const CodingContext context{setup_.seed, step_, static_cast<std::uint32_t>(owner), 2};
      for (std::int64_t first = begin; first < end; first += bucket) {
        const std::int64_t n = std::min(bucket, end - first);
        code(first, n, mean.data(), residual, context);
        for (std::int64_t i = 0; i < n; ++i)
          means[offset + index[static_cast<std::size_t>(first + i)]] = decoded[static_cast<std::size_t>(i)];
      }
    }
  }
  ++step_;
  return means;
}

std::vector<std::vector<float>> reference_means(const ExchangeSetup& setup, const RankBlocks& ranks,
                                                std::uint32_t steps) {
  ExchangeReference reference(setup, ranks);
  std::vector<std::vector<float>> means;
  for (std::uint32_t s = 0; s < steps; ++s) means.push_back(reference.step());
  return means;
}

}  // namespace lpsgd
