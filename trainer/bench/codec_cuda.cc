// `lpsgd bench codec --device cuda`: each codec's speed on the GPU beside a copy of the same array on the
// device in the same run. Times are the device's, by events.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/buffer.h"
#include "core/device.h"
#include "quant/codec.h"
#include "quant/cuda/cuda_codec.h"
#include "trainer/bench/codec.h"
#include "trainer/bench/samples.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr int timed_launches = 10;  // launches per measurement

class CudaCodecBench {
 public:
  CudaCodecBench(std::int64_t elements, std::int64_t repeats)
      : n_(elements),
        repeats_(repeats),
        stream_(device_),
        values_(device_, static_cast<std::size_t>(n_)),
        residual_(device_, static_cast<std::size_t>(n_)),
        sum_(device_, static_cast<std::size_t>(n_)),
        copy_(device_, static_cast<std::size_t>(n_)) {
    Buffer<float> host(static_cast<std::size_t>(n_));
    fill_like_gradients(host, 0);
    copy_bytes(values_.data(), host.data(), host.size() * sizeof(float), stream_);
    stream_.synchronize();
  }

  ordered_json results = ordered_json::array();

  void run(const CodecSpec& spec) {
    const auto codec = make_codec(spec, bench_tensor(n_));
    const CodingJob job = codec->job(0, n_);
    const std::size_t encoded = codec->encoded_bytes(n_);
    std::vector<DeviceBuffer<std::byte>> sent;
    std::vector<const std::byte*> received;
    CodingJob reduce = job;
    for (std::uint32_t r = 0; r < bench_contributions; ++r) {
      sent.emplace_back(device_, encoding_room(encoded));
      CodingJob one = job;
      one.values = values_.data();
      one.bytes = sent.back().data();
      CudaBatch batch(spec, device_, {&one, 1});
      batch.encode({1, 0, r, 1}, stream_);
      stream_.synchronize();
      received.push_back(one.bytes);
    }
    reduce.contributions = received.data();
    reduce.ranks = bench_contributions;
    DeviceBuffer<std::byte> out(device_, encoding_room(encoded));
    zero_bytes(residual_.data(), static_cast<std::size_t>(n_) * sizeof(float), stream_);
    zero_bytes(sum_.data(), static_cast<std::size_t>(n_) * sizeof(float), stream_);
    float* residual = codec->error_feedback() ? residual_.data() : nullptr;
    CodingJob encode = job, decode = job;
    encode.values = values_.data();
    encode.residual = reduce.residual = residual;
    encode.bytes = reduce.bytes = out.data();
    decode.bytes = sent[0].data();
    decode.out = sum_.data();
    CudaBatch encodes(spec, device_, {&encode, 1}), decodes(spec, device_, {&decode, 1}),
        reduces(spec, device_, {&reduce, 1});
    const CodingContext context{1, 0, 0, 2};
    const std::int64_t array = 4 * n_, bytes = static_cast<std::int64_t>(encoded);
    const std::int64_t kept = residual ? 2 * array : 0;
    measure(to_text(spec), "encode", array + kept + bytes, [&] { encodes.encode(context, stream_); });
    measure(to_text(spec), "decode_add", bytes + 2 * array, [&] { decodes.decode(0, 1, true, stream_); });
    measure(to_text(spec), "reduce4", bench_contributions * bytes + kept + bytes,
            [&] { reduces.reduce(context, stream_); });
  }

 private:
  double timed(const std::function<void()>& body) {
    Event begin(device_, Event::Timing::on), end(device_, Event::Timing::on);
    begin.record(stream_);
    for (int i = 0; i < timed_launches; ++i) body();
    end.record(stream_);
    end.synchronize();
    return seconds_between(begin, end) / timed_launches;
  }

  void measure(const std::string& codec, const char* operation, std::int64_t bytes_moved,
               const std::function<void()>& body) {
    std::vector<double> seconds, copies;
    for (std::int64_t i = -1; i < repeats_; ++i) {  // the first round warms up
      const double copied = timed([&] {
        copy_bytes(copy_.data(), values_.data(), static_cast<std::size_t>(n_) * sizeof(float), stream_);
      });
      const double coded = timed(body);
      if (i < 0) continue;
      copies.push_back(copied);
      seconds.push_back(coded);
    }
    const double mine = median(seconds), copy = median(copies);
    const double limit = static_cast<double>(bytes_moved) / (8.0 * static_cast<double>(n_)) * copy;
    results.push_back({{"name", fmt::format("{} {}", operation, codec)},
                       {"device", cuda_device_info(device_.index).name},
                       {"operation", operation},
                       {"codec", codec},
                       {"elements", n_},
                       {"seconds", mine},
                       {"seconds_min", *std::min_element(seconds.begin(), seconds.end())},
                       {"bytes_moved", bytes_moved},
                       {"gigabytes_per_second", static_cast<double>(bytes_moved) / mine * 1e-9},
                       {"memcpy_seconds", copy},
                       {"ratio_to_memcpy", copy / mine},
                       {"fraction_of_memory_limit", limit / mine}});
  }

  const std::int64_t n_, repeats_;
  const Device device_ = Device::cuda(0);
  const Stream stream_;
  DeviceBuffer<float> values_, residual_, sum_, copy_;
};

}  // namespace

ordered_json bench_codec_cuda(const std::vector<CodecSpec>& specs, std::int64_t elements,
                              std::int64_t repeats) {
  CudaCodecBench bench(elements, repeats);
  for (const CodecSpec& spec : specs) bench.run(spec);
  return bench.results;
}

}  // namespace lpsgd
