// `lpsgd bench codec`: each codec's speed on one core beside memcpy of the same array in the same run.
#include "trainer/bench/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/buffer.h"
#include "core/clock.h"
#include "core/error.h"
#include "quant/codec.h"
#include "trainer/bench/commands.h"
#include "trainer/bench/samples.h"
#include "trainer/json_text.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr auto contributions = static_cast<std::size_t>(bench_contributions);

const char* const default_codecs[] = {
    "{kind: qsgd, bits: 2, bucket: 512}",
    "{kind: qsgd, bits: 4, bucket: 512}",
    "{kind: qsgd, bits: 8, bucket: 512}",
    "{kind: qsgd, bits: 16, bucket: 8192}",
    "{kind: qsgd, bits: 4, bucket: tensor}",
    "{kind: qsgd, bits: 4, levels: interval}",
    "{kind: qsgd, bits: 4, levels: exponential}",
    "{kind: qsgd, bits: 4, levels: optimal}",
    "{kind: onebit, bucket: 64}",
    "{kind: sign, bucket: 512}",
    "{kind: topk, density: 0.01}",
    "{kind: topk, density: 0.01, bucket: tensor}",
    "{kind: dynamic8}",
    "{kind: mx}",
    "{kind: mx, element: e4m3}",
    "none",
    "fp16",
    "bf16",
};

class CodecBench {
 public:
  CodecBench(std::int64_t elements, std::int64_t repeats)
      : n_(elements),
        repeats_(repeats),
        values_(static_cast<std::size_t>(n_)),
        residual_(static_cast<std::size_t>(n_)),
        sum_(static_cast<std::size_t>(n_)) {
    fill_like_gradients(values_, 0);
  }

  ordered_json results = ordered_json::array();

  void run(const CodecSpec& spec) {
    const auto codec = make_codec(spec, bench_tensor(n_));
    const std::size_t encoded = codec->encoded_bytes(n_);
    const std::int64_t array = 4 * n_;
    const auto bytes = static_cast<std::int64_t>(encoded);
    CodingJob encode = codec->job(0, n_);
    encode.values = values_.data();
    std::vector<Buffer<std::byte>> sent;
    std::vector<const std::byte*> received;
    for (std::size_t r = 0; r < contributions; ++r) {
      sent.emplace_back(encoded);
      encode.bytes = sent.back().data();
      codec->encode(encode, {1, 0, static_cast<std::uint32_t>(r), 1});
      received.push_back(encode.bytes);
    }
    Buffer<std::byte> out(encoded);
    encode.bytes = out.data();
    if (codec->error_feedback()) encode.residual = residual_.data();
    CodingJob reduce = encode, decode = encode;
    reduce.contributions = received.data();
    reduce.ranks = bench_contributions;
    decode.bytes = sent[0].data();
    decode.out = sum_.data();
    const CodingContext context{1, 0, 0, 2};
    const std::string name = to_text(spec);
    const std::int64_t residual_bytes = encode.residual ? 2 * array : 0;

    std::fill(residual_.begin(), residual_.end(), 0.0f);
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    const auto all = static_cast<std::int64_t>(contributions);
    std::vector<Operation> operations{
        {"encode", array + residual_bytes + bytes, [&] { codec->encode(encode, context); }},
        {"decode_add", bytes + 2 * array, [&] { codec->decode(decode, true); }},
        {"reduce4", all * bytes + residual_bytes + bytes, [&] { codec->reduce(reduce, context); }},
        {"reduce4_in_parts", all * bytes + (2 * all + 2) * array + residual_bytes + bytes, [&] {
           CodingJob part = decode;
           for (std::size_t r = 0; r < contributions; ++r) {
             part.bytes = sent[r].data();
             codec->decode(part, r > 0);
           }
           for (float& x : sum_) x *= 1.0f / static_cast<float>(contributions);
           part = encode;
           part.values = sum_.data();
           codec->encode(part, context);
         }}};
    measure(name, operations);
    results[results.size() - 2]["speedup_over_parts"] =
        median(operations[3].seconds) / median(operations[2].seconds);
  }

 private:
  struct Operation {
    const char* name;
    std::int64_t bytes_moved;
    std::function<void()> body;
    std::vector<double> seconds = {}, copies = {};
  };

  /// Times all operations in turn, with a memcpy of the array before each: other load on the machine then
  /// slows them alike.
  void measure(const std::string& codec, std::vector<Operation>& operations) {
    for (std::int64_t i = -1; i < repeats_; ++i)  // the first round warms up
      for (Operation& o : operations) {
        const double t0 = now_seconds();
        std::memcpy(copy_.data(), values_.data(), values_.size() * sizeof(float));
        const double t1 = now_seconds();
        o.body();
        const double t2 = now_seconds();
        if (i < 0) continue;
        o.copies.push_back(t1 - t0);
        o.seconds.push_back(t2 - t1);
      }
    for (const Operation& o : operations) {
      const double mine = median(o.seconds), copy = median(o.copies);
      // The time that the moved bytes need at memcpy's bandwidth; memcpy reads and writes the array.
      const double limit = static_cast<double>(o.bytes_moved) / (8.0 * static_cast<double>(n_)) * copy;
      results.push_back({{"name", fmt::format("{} {}", o.name, codec)},
                         {"operation", o.name},
                         {"codec", codec},
                         {"elements", n_},
                         {"seconds", mine},
                         {"seconds_min", *std::min_element(o.seconds.begin(), o.seconds.end())},
                         {"bytes_moved", o.bytes_moved},
                         {"memcpy_seconds", copy},
                         {"memcpy_seconds_min", *std::min_element(o.copies.begin(), o.copies.end())},
                         {"ratio_to_memcpy", copy / mine},
                         {"fraction_of_memory_limit", limit / mine}});
    }
  }

  const std::int64_t n_, repeats_;
  Buffer<float> values_, residual_, sum_, copy_{static_cast<std::size_t>(n_)};
};

std::string codec_rates(const ordered_json& results) {
  std::string out = fmt::format("{:<17} {:>9} {:>9} {:>8} {:>12} {:>9}  {}\n", "operation", "ms", "memcpy ms",
                                "ratio", "memory limit", "speed-up", "codec");
  for (const ordered_json& r : results)
    out += fmt::format(
        "{:<17} {:>9.2f} {:>9.2f} {:>8.3f} {:>12.3f} {:>9}  {}\n", r["operation"].get<std::string>(),
        1e3 * r["seconds"].get<double>(), 1e3 * r["memcpy_seconds"].get<double>(),
        r["ratio_to_memcpy"].get<double>(), r["fraction_of_memory_limit"].get<double>(),
        r.contains("speedup_over_parts") ? fmt::format("{:.2f}x", r["speedup_over_parts"].get<double>()) : "",
        r["codec"].get<std::string>());
  return out +
         "ratio: memcpy's seconds over the operation's; memory limit: the part of memcpy's bandwidth that it "
         "uses\n";
}

}  // namespace

#if !LPSGD_HAVE_CUDA
ordered_json bench_codec_cuda(const std::vector<CodecSpec>&, std::int64_t, std::int64_t) {
  throw DeviceError("--device cuda: this build has no CUDA backend");
}
#endif

std::string bench_codec_command(const BenchCodecArguments& arguments) {
  std::vector<CodecSpec> specs;
  std::vector<std::string> texts = arguments.codecs;
  if (texts.empty()) texts.assign(std::begin(default_codecs), std::end(default_codecs));
  for (const std::string& text : texts)
    specs.push_back(parse_codec(config::parse_text(text, "--codec"), "codec"));
  const auto shown = [&](const ordered_json& results) {
    return arguments.json ? json_text(results, 2) + "\n" : codec_rates(results);
  };
  if (arguments.device == "cuda")
    return shown(bench_codec_cuda(specs, arguments.elements > 0 ? arguments.elements : std::int64_t{1} << 24,
                                  arguments.repeats));
  CodecBench bench(arguments.elements > 0 ? arguments.elements : std::int64_t{1} << 28, arguments.repeats);
  for (const CodecSpec& spec : specs) bench.run(spec);
  return shown(bench.results);
}

}  // namespace lpsgd
