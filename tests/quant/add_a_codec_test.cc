// What docs/add-a-codec.md promises of its codec; built and run by add_a_codec_test.sh.
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "quant/cpu_codec.h"

using namespace lpsgd;

int main() {
  const CodecSpec spec = parse_codec(config::parse_text("toy", "test"), "codec");
  bool right = to_text(spec) == "{kind: toy, bucket: 256, error_feedback: true}";
  try {
    parse_codec(config::parse_text("toi", "test"), "codec");
    right = false;
  } catch (const ConfigError&) {
  }
  constexpr std::int64_t n = 700;
  for (const CpuIsa isa : cpu_isas()) {
    const auto codec = make_cpu_codec(spec, isa);
    std::vector<float> values(n), residual(n), out(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = std::sin(static_cast<float>(i));
    std::vector<std::byte> bytes(codec->encoded_bytes(n, 256));
    right &= bytes.size() == 2 * (4 + 64) + 4 + 48;
    right &= codec->encode(values.data(), residual.data(), n, 0, 256, {}, bytes.data());
    right &= codec->decode(bytes.data(), n, 256, false, out.data());
    for (std::size_t i = 0; i < n; ++i) {
      right &= out[i] == 0 || std::fabs(out[i]) > 0.99f;
      right &= residual[i] == values[i] - out[i] && std::fabs(residual[i]) < 0.51f;
    }
    const std::byte* both[] = {bytes.data(), bytes.data()};
    std::vector<std::byte> mean(bytes.size());
    right &= codec->reduce(both, nullptr, n, 0, 256, {}, mean.data()) && mean == bytes;
  }
  std::puts(right ? "the codec of docs/add-a-codec.md works"
                  : "the codec of docs/add-a-codec.md does not work");
  return right ? 0 : 1;
}
