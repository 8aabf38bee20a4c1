// The device gives the CPU's bytes: every codec, length and kind of values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/philox.h"
#include "quant/cuda/cuda_codec.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

using Bytes = std::vector<std::byte>;
using Values = std::vector<float>;

const char* const specs[] = {
    "none",
    "fp16",
    "bf16",
    "onebit",
    "{kind: onebit, bucket: tensor}",
    "{kind: qsgd, bits: 2}",
    "{kind: qsgd, bits: 4, bucket: 96}",
    "{kind: qsgd, bits: 8, norm: l2}",
    "{kind: qsgd, bits: 16, norm: l2}",
    "{kind: qsgd, bits: 4, bucket: tensor, norm: l2}",
    "{kind: qsgd, bits: 8, levels: interval}",
    "{kind: qsgd, bits: 16, levels: interval}",
    "{kind: qsgd, bits: 4, levels: exponential}",
    "{kind: qsgd, bits: 8, levels: exponential}",
    "{kind: qsgd, bits: 2, levels: optimal}",
    "{kind: qsgd, bits: 4, levels: optimal}",
    "{kind: qsgd, bits: 8, levels: optimal, norm: l2}",
    "sign",
    "{kind: sign, bucket: 64}",
    "{kind: sign, bucket: 512, majority: true}",
    "{kind: topk, density: 0.02}",
    "{kind: topk, density: 0.3, bucket: tensor}",
    "dynamic8",
    "{kind: dynamic8, type: static_tree, bucket: 64}",
    "{kind: dynamic8, type: linear}",
    "{kind: dynamic8, type: mantissa}",
};

/// Kinds: 0 bell-shaped, 1 of mixed magnitude, 2 zeros, 3 denormal, 4 a NaN and an infinity among them.
Values inputs(std::int64_t n, int kind, std::uint32_t seed) {
  PhiloxSequence random(seed, RandomUse::dataset, static_cast<std::uint32_t>(kind));
  Values out(static_cast<std::size_t>(n));
  for (float& x : out) {
    const float bell = random.uniform() + random.uniform() + random.uniform() - 1.5f;
    x = kind == 1   ? std::ldexp(bell, static_cast<int>(random.below(80)) - 40)
        : kind == 2 ? (random.below(2) ? 0.0f : -0.0f)
        : kind == 3 ? std::ldexp(bell, -130)
                    : bell * 0.01f;
  }
  if (kind == 4 && n > 0) {
    out[out.size() / 2] = std::nanf("");
    out[out.size() / 3] = -INFINITY;
  }
  return out;
}

/// One tensor on the device, and what the CPU makes of it.
struct Tensor {
  std::int64_t n, bucket;
  Values values, residual;
  std::vector<Bytes> sent;
  DeviceBuffer<float> d_values, d_residual, d_out;
  DeviceBuffer<std::byte> d_bytes;
  std::vector<DeviceBuffer<std::byte>> d_sent;
  std::vector<const std::byte*> d_contributions;
};

class CodecGpu : public GpuTest {
 protected:
  template <class T>
  DeviceBuffer<T> up(const std::vector<T>& from, const Stream& stream) {
    DeviceBuffer<T> to(device, from.size() + 1);
    copy_bytes(to.data(), from.data(), from.size() * sizeof(T), stream);
    stream.synchronize();
    return to;
  }
  template <class T>
  std::vector<T> down(const DeviceBuffer<T>& from, std::size_t size, const Stream& stream) {
    std::vector<T> to(size);
    copy_bytes(to.data(), from.data(), size * sizeof(T), stream);
    stream.synchronize();
    return to;
  }
};

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

TEST_F(CodecGpu, DeviceGivesTheHostsBytes) {
  constexpr std::int64_t lengths[] = {0, 1, 31, 33, 64, 65, 127, 509, 512, 4097, 8193, 150'001};
  constexpr std::size_t ranks = 3;
  const Stream stream(device);
  for (const char* text : specs)
    for (const bool feedback : {false, true})
      for (int kind = 0; kind < 5; ++kind) {
        const CodecSpec spec = parse_codec(config::parse_text(text, "test"), "codec");
        SCOPED_TRACE(std::string(text) + " kind " + std::to_string(kind) +
                     (feedback ? " with residual" : ""));
        const auto host = make_codec(spec);
        CudaCodec there(spec, device);
        std::vector<Tensor> tensors;
        std::vector<CudaCodecJob> jobs;
        for (const std::int64_t n : lengths) {
          Tensor& t = tensors.emplace_back();
          t.n = n;
          t.bucket = host->bucket({"t", TensorKind::bias, {n}, n, 0});
          t.values = inputs(n, kind, 1);
          t.residual = inputs(n, kind == 4 ? 0 : kind, 2);
          t.d_values = up(t.values, stream);
          t.d_residual = up(t.residual, stream);
          t.d_out = DeviceBuffer<float>(device, t.values.size() + 1);
          t.d_bytes = DeviceBuffer<std::byte>(device, host->encoded_bytes(n, t.bucket) + 8);
          for (std::size_t r = 0; r < ranks; ++r) {
            Bytes bytes(host->encoded_bytes(n, t.bucket));
            const CodingContext context{5, static_cast<std::uint32_t>(tensors.size()), 9,
                                        static_cast<std::uint32_t>(r), 1};
            host->encode(inputs(n, kind, 10 + static_cast<std::uint32_t>(r)).data(), nullptr, n, 0, t.bucket,
                         context, bytes.data());
            t.sent.push_back(bytes);
            t.d_sent.push_back(up(bytes, stream));
          }
          for (const auto& buffer : t.d_sent) t.d_contributions.push_back(buffer.data());
        }
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          Tensor& t = tensors[i];
          CudaCodecJob job;
          job.values = t.d_values.data();
          job.residual = feedback ? t.d_residual.data() : nullptr;
          job.out = t.d_out.data();
          job.bytes = t.d_bytes.data();
          job.n = t.n;
          job.bucket = t.bucket;
          job.tensor = static_cast<std::uint32_t>(i);
          jobs.push_back(job);
        }
        const CodingContext context{5, 0, 9, 1, 2};
        const auto context_of = [&](std::size_t i) {
          CodingContext c = context;
          c.tensor = static_cast<std::uint32_t>(i);
          return c;
        };
        for (const bool reduces : {false, true}) {
          DeviceBuffer<std::uint32_t> flags(device, jobs.size());
          for (std::size_t i = 0; i < jobs.size(); ++i) {
            jobs[i].contributions = reduces ? std::span<const std::byte* const>(tensors[i].d_contributions)
                                            : std::span<const std::byte* const>();
            copy_bytes(tensors[i].d_residual.data(), tensors[i].residual.data(),
                       tensors[i].residual.size() * 4, stream);
          }
          if (reduces)
            there.reduce(jobs, context, flags.data(), stream);
          else
            there.encode(jobs, context, flags.data(), stream);
          const auto not_finite = down(flags, jobs.size(), stream);
          for (std::size_t i = 0; i < tensors.size(); ++i) {
            Tensor& t = tensors[i];
            Values residual = t.residual;
            float* r = feedback ? residual.data() : nullptr;
            Bytes expected(host->encoded_bytes(t.n, t.bucket));
            bool finite = true;
            if (reduces) {
              std::vector<const std::byte*> contributions;
              for (const Bytes& b : t.sent) contributions.push_back(b.data());
              finite = host->reduce(contributions, r, t.n, 0, t.bucket, context_of(i), expected.data());
            } else {
              finite = host->encode(t.values.data(), r, t.n, 0, t.bucket, context_of(i), expected.data());
            }
            ASSERT_TRUE(same(down(t.d_bytes, expected.size(), stream), expected))
                << t.n << " reduces " << reduces;
            if (feedback) {
              ASSERT_TRUE(same(down(t.d_residual, residual.size(), stream), residual)) << t.n;
            }
            if (!reduces) {
              EXPECT_EQ(not_finite[i] == 0, finite) << t.n;
            }
          }
          for (const bool adds : {false, true}) {
            for (CudaCodecJob& job : jobs) job.contributions = {};
            there.decode(jobs, adds, flags.data(), stream);
            for (Tensor& t : tensors) {
              const Bytes bytes = down(t.d_bytes, host->encoded_bytes(t.n, t.bucket), stream);
              Values expected(t.values.size());
              for (int times = 0; times <= static_cast<int>(adds); ++times)
                host->decode(bytes.data(), t.n, t.bucket, times > 0, expected.data());
              ASSERT_TRUE(same(down(t.d_out, expected.size(), stream), expected)) << t.n << " adds " << adds;
            }
          }
        }
      }
}

}  // namespace
}  // namespace lpsgd
