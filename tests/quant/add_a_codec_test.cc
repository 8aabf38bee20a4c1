// What docs/add-a-codec.md promises of its codec; built and run by add_a_codec_test.sh.
#include <cmath>
#include <cstdio>

#include "core/device.h"
#include "core/error.h"
#include "quant/codec.h"
#if LPSGD_HAVE_CUDA
#include "quant/cuda/cuda_codec.h"
#endif

using namespace lpsgd;

namespace {

constexpr std::int64_t n = 700;

struct Coded {
  std::vector<std::byte> bytes, mean;
  std::vector<float> residual, out;
  bool operator==(const Coded&) const = default;
};

Coded code(const Codec& codec, const std::vector<float>& values, bool& right) {
  Coded coded{
      std::vector<std::byte>(codec.encoded_bytes(n)), {}, std::vector<float>(n), std::vector<float>(n)};
  coded.mean.resize(coded.bytes.size());
  CodingJob job = codec.job(0, n);
  job.values = values.data();
  job.residual = coded.residual.data();
  job.bytes = coded.bytes.data();
  job.out = coded.out.data();
  right &= codec.encode(job, {}) && codec.decode(job);
  const std::byte* both[] = {coded.bytes.data(), coded.bytes.data()};
  job.contributions = both;
  job.ranks = 2;
  job.residual = nullptr;
  job.bytes = coded.mean.data();
  right &= codec.reduce(job, {});
  return coded;
}

#if LPSGD_HAVE_CUDA
Coded code_on_device(const Codec& codec, const std::vector<float>& values) {
  const Device device = Device::cuda(0);
  const Stream stream(device);
  const std::size_t bytes = codec.encoded_bytes(n);
  DeviceBuffer<float> there(device, n), residual(device, n), out(device, n);
  DeviceBuffer<std::byte> encoding(device, encoding_room(bytes)), mean(device, encoding_room(bytes));
  copy_values(there.view(), std::span(values), stream);
  CodingJob job = codec.job(0, n);
  job.bytes = encoding.data();
  CodingJob encode = job, decode = job, reduce = job;
  encode.values = there.data();
  encode.residual = residual.data();
  decode.out = out.data();
  const std::byte* both[] = {encoding.data(), encoding.data()};
  reduce.contributions = both;
  reduce.ranks = 2;
  reduce.bytes = mean.data();
  CudaBatch encodes(codec.spec(), device, {&encode, 1}), decodes(codec.spec(), device, {&decode, 1}),
      reduces(codec.spec(), device, {&reduce, 1});
  encodes.encode({}, stream);
  decodes.decode(0, 1, false, stream);
  reduces.reduce({}, stream);
  Coded coded{std::vector<std::byte>(bytes), std::vector<std::byte>(bytes), std::vector<float>(n),
              std::vector<float>(n)};
  copy_values(std::span(coded.bytes), encoding.view(), stream);
  copy_values(std::span(coded.mean), mean.view(), stream);
  copy_values(std::span(coded.residual), residual.view(), stream);
  copy_values(std::span(coded.out), out.view(), stream);
  stream.synchronize();
  return coded;
}
#endif

}  // namespace

/// Argument "gpu": there must be one.
int main(int argc, char**) {
  const CodecSpec spec = parse_codec(config::parse_text("toy", "test"), "codec");
  bool right = to_text(spec) == "{kind: toy, bucket: 256, error_feedback: true}";
  try {
    parse_codec(config::parse_text("toi", "test"), "codec");
    right = false;
  } catch (const ConfigError&) {
  }
  if (argc > 1) right &= cuda_devices().count > 0;
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = std::sin(static_cast<float>(i));
  for (const CpuIsa isa : cpu_isas()) {
    const Codec codec(spec, 256, isa);
    const Coded coded = code(codec, values, right);
    right &= coded.bytes.size() == 2 * (4 + 64) + 4 + 48 && coded.mean == coded.bytes;
    for (std::size_t i = 0; i < n; ++i) {
      right &= coded.out[i] == 0 || std::fabs(coded.out[i]) > 0.99f;
      right &= coded.residual[i] == values[i] - coded.out[i] && std::fabs(coded.residual[i]) < 0.51f;
    }
#if LPSGD_HAVE_CUDA
    if (cuda_devices().count > 0) right &= code_on_device(codec, values) == coded;
#endif
  }
  std::puts(right ? "the codec of docs/add-a-codec.md works"
                  : "the codec of docs/add-a-codec.md does not work");
  return right ? 0 : 1;
}
