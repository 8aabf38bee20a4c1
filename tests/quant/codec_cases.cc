#include "tests/quant/codec_cases.h"

#include <cmath>

#include "core/file.h"
#include "core/philox.h"

namespace lpsgd::codec_cases {
namespace {

class Parser {
 public:
  explicit Parser(std::string data) : data_(std::move(data)) {}
  std::uint32_t word() {
    std::uint32_t x = 0;
    std::memcpy(&x, data_.data() + at_, 4);
    at_ += 4;
    return x;
  }
  std::string text() {
    const std::uint32_t size = word();
    at_ += size;
    return data_.substr(at_ - size, size);
  }
  Bytes blob() {
    const std::string s = text();
    Bytes out(s.size());
    if (!s.empty()) std::memcpy(out.data(), s.data(), s.size());
    return out;
  }

 private:
  std::string data_;
  std::size_t at_ = 0;
};

}  // namespace

CodecSpec spec_of(const std::string& text) {
  return parse_codec(config::parse_text(text, "test"), "codec");
}

const std::vector<std::string>& all_specs() {
  static const std::vector<std::string> specs = {
      "none",
      "fp16",
      "bf16",
      "onebit",
      "{kind: onebit, bucket: 32}",
      "{kind: onebit, bucket: tensor}",
      "{kind: qsgd, bits: 2}",
      "{kind: qsgd, bits: 4}",
      "{kind: qsgd, bits: 8, norm: l2}",
      "{kind: qsgd, bits: 16}",
      "{kind: qsgd, bits: 4, bucket: 96, norm: l2}",
      "{kind: qsgd, bits: 4, bucket: tensor, norm: l2}",
      "{kind: qsgd, bits: 2, levels: interval, norm: l2}",
      "{kind: qsgd, bits: 4, levels: interval}",
      "{kind: qsgd, bits: 16, levels: interval}",
      "{kind: qsgd, bits: 4, levels: exponential}",
      "{kind: qsgd, bits: 8, levels: exponential, norm: l2}",
      "{kind: qsgd, bits: 2, levels: optimal}",
      "{kind: qsgd, bits: 4, levels: optimal}",
      "{kind: qsgd, bits: 8, levels: optimal}",
      "sign",
      "{kind: sign, bucket: 128}",
      "{kind: sign, bucket: 512, majority: true}",
      "{kind: topk, density: 0.02}",
      "{kind: topk, density: 0.4, bucket: 64}",
      "{kind: topk, density: 0.3, bucket: tensor}",
      "dynamic8",
      "{kind: dynamic8, type: static_tree}",
      "{kind: dynamic8, type: linear}",
      "{kind: dynamic8, type: mantissa, bucket: 64}",
      "mx",
      "{kind: mx, rounding: nearest, bucket: 32}",
      "{kind: mx, element: e4m3, bucket: 96}",
      "{kind: mx, element: e4m3, rounding: nearest, bucket: tensor}",
      "{kind: mx, element: e5m2}",
      "{kind: mx, element: e5m2, rounding: nearest, bucket: 160}",
  };
  return specs;
}

std::vector<float> inputs(std::int64_t n, int kind, std::uint32_t seed) {
  PhiloxSequence random(seed, RandomUse::dataset, static_cast<std::uint32_t>(kind));
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) {
    const float bell = random.uniform() + random.uniform() + random.uniform() - 1.5f;
    switch (kind) {
      case 0:
        x = bell * 0.01f;
        break;
      case 1:
        x = std::ldexp(bell, static_cast<int>(random.below(80)) - 40);
        break;
      case 2:
        x = -0.3f;
        break;
      case 3:
        x = 0.0f;
        break;
      case 4:
        x = std::ldexp(bell, -130);
        break;
      case 5:
        x = std::ldexp(bell, 126);
        break;
      default:
        x = random.below(3) == 0 ? (random.below(2) ? 0.0f : -0.0f)
                                 : std::ldexp(bell, static_cast<int>(random.below(250)) - 140);
    }
  }
  return out;
}

const std::vector<std::int64_t>& lengths() {
  static const std::vector<std::int64_t> all{0,   1,   31,  32,  33,  63,   64,   65,
                                             127, 509, 511, 512, 513, 4099, 8191, 8193};
  return all;
}

Codec codec_of(const CodecSpec& spec, std::int64_t n, CpuIsa isa) {
  return Codec(spec, spec.bucket.of({.name = "t", .shape = {n}, .elements = n}), isa);
}

CodingJob encoding(const Codec& codec, const std::vector<float>& values, std::vector<float>& residual,
                   Bytes& bytes, std::uint32_t tensor) {
  const auto n = static_cast<std::int64_t>(values.size());
  bytes.resize(codec.encoded_bytes(n));
  CodingJob job = codec.job(0, n, tensor);
  job.values = values.data();
  job.residual = residual.empty() ? nullptr : residual.data();
  job.bytes = bytes.data();
  return job;
}

CodingJob decoding(const Codec& codec, Bytes& bytes, std::vector<float>& out) {
  CodingJob job = codec.job(0, static_cast<std::int64_t>(out.size()));
  job.bytes = bytes.data();
  job.out = out.data();
  return job;
}

CodingJob reduction(const Codec& codec, const std::vector<const std::byte*>& contributions, std::int64_t n,
                    std::vector<float>& residual, Bytes& bytes, std::uint32_t tensor) {
  bytes.resize(codec.encoded_bytes(n));
  CodingJob job = codec.job(0, n, tensor);
  job.contributions = contributions.data();
  job.ranks = static_cast<std::int32_t>(contributions.size());
  job.residual = residual.empty() ? nullptr : residual.data();
  job.bytes = bytes.data();
  return job;
}

Encoded encode(const Codec& codec, const std::vector<float>& values, const std::vector<float>& residual,
               const CodingContext& context, std::uint32_t tensor) {
  Encoded out;
  out.residual = residual;
  out.decoded.resize(values.size());
  out.finite = codec.encode(encoding(codec, values, out.residual, out.bytes, tensor), context);
  codec.decode(decoding(codec, out.bytes, out.decoded));
  return out;
}

CodingContext Golden::context() const {
  const auto word = [&](const char* key) { return static_cast<std::uint32_t>(integer(key)); };
  return {word("seed"), word("step"), word("rank"), word("round_")};
}

CodingJob Golden::job(const Codec& codec) const {
  return codec.job(integer("first"), integer("n"), static_cast<std::size_t>(integer("tensor")));
}

std::vector<float> floats(const Bytes& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Bytes bytes_of(const std::vector<float>& values) {
  Bytes out(values.size() * sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

std::vector<Golden> golden_cases(const std::string& path) {
  Parser parser(read_file(path));
  std::vector<Golden> cases(parser.word());
  for (Golden& c : cases) {
    c.meta = config::parse_text(parser.text(), "golden");
    c.blobs.resize(parser.word());
    for (Bytes& b : c.blobs) b = parser.blob();
  }
  return cases;
}

}  // namespace lpsgd::codec_cases
