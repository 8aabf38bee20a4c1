// libFuzzer: codecs decode any bytes of the right length without touching memory outside, on every
// instruction set alike, and parse_codec takes or refuses any text.
//   input: 0 text       parse_codec of the text; what it takes is written and read back
//          1 spec ...   decode: byte 1 picks the codec, bytes 2-3 the number of values, 4 the bucket, the
//          rest
//                       is the encoded data, cut or filled up with zeros
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/error.h"
#include "quant/codec.h"

namespace {

using namespace lpsgd;

const char* const specs[] = {
    "none",
    "fp16",
    "bf16",
    "onebit",
    "{kind: qsgd, bits: 2}",
    "{kind: qsgd, bits: 4, norm: l2}",
    "{kind: qsgd, bits: 8}",
    "{kind: qsgd, bits: 16}",
    "{kind: qsgd, bits: 2, levels: interval}",
    "{kind: qsgd, bits: 8, levels: interval}",
    "{kind: qsgd, bits: 4, levels: exponential}",
    "{kind: qsgd, bits: 8, levels: exponential}",
    "{kind: qsgd, bits: 2, levels: optimal}",
    "{kind: qsgd, bits: 4, levels: optimal}",
    "{kind: qsgd, bits: 8, levels: optimal}",
    "sign",
    "{kind: sign, majority: true}",
    "{kind: topk, density: 0.1}",
    "{kind: topk, density: 1}",
    "dynamic8",
    "{kind: dynamic8, type: static_tree}",
    "{kind: dynamic8, type: linear}",
    "{kind: dynamic8, type: mantissa}",
    "mx",
    "{kind: mx, element: e4m3, rounding: nearest}",
    "{kind: mx, element: e5m2}",
    "{kind: mx, rounding: nearest, error_feedback: true}",
};

void expect(bool holds) {
  if (!holds) std::abort();
}

void parse(const std::string& text) {
  try {
    const CodecSpec spec = parse_codec(config::parse_text(text, "fuzz"), "codec");
    expect(to_text(parse_codec(config::parse_text(to_text(spec), "again"), "codec")) == to_text(spec));
    expect(make_codec(spec, {"t", TensorKind::bias, {100}, 100, 0})->bucket() >= 1);
  } catch (const ConfigError&) {
  }
}

void decode(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t buckets[] = {1, 3, 32, 64, 96, 512, 4096, 10000};
  const CodecSpec spec = parse_codec(config::parse_text(specs[data[0] % std::size(specs)], "fuzz"), "codec");
  const std::int64_t n = (data[1] | data[2] << 8) % 2049;
  const bool bucketed = spec.kind != "none" && spec.kind != "fp16" && spec.kind != "bf16";
  const std::int64_t bucket = bucketed ? buckets[data[3] % std::size(buckets)] : 64;
  std::vector<float> first, first_sum;
  for (const CpuIsa isa : cpu_isas()) {
    const Codec codec(spec, bucket, isa);
    const std::size_t bytes = codec.encoded_bytes(n);
    // Blocks of exactly the size: AddressSanitizer sees what lies beside them.
    const auto in = std::make_unique<std::byte[]>(bytes);
    std::memset(in.get(), 0, bytes);
    if (bytes > 0 && size > 4) std::memcpy(in.get(), data + 4, std::min(bytes, size - 4));
    std::vector<float> out(static_cast<std::size_t>(n)), sum(out.size(), 1.0f), residual(out.size(), 0.25f);
    CodingJob job = codec.job(0, n);
    job.bytes = in.get();
    job.out = out.data();
    codec.decode(job);
    job.out = sum.data();
    codec.decode(job, true);
    const std::byte* both[] = {in.get(), in.get()};
    const auto mean = std::make_unique<std::byte[]>(bytes);
    job.contributions = both;
    job.ranks = 2;
    job.residual = residual.data();
    job.bytes = mean.get();
    codec.reduce(job, {.round = 2});
    if (isa == CpuIsa::baseline) {
      first = out;
      first_sum = sum;
    }
    const std::size_t values = out.size() * sizeof(float);
    expect(values == 0 || std::memcmp(out.data(), first.data(), values) == 0);
    expect(values == 0 || std::memcmp(sum.data(), first_sum.data(), values) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= 1 && data[0] == 0)
    parse(std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  else if (size >= 5)
    decode(data + 1, size - 1);
  return 0;
}
