#include "quant/cpu_codec.h"

#include <cpuid.h>

#include <algorithm>
#include <cstring>

#include "core/buffer.h"
#include "core/error.h"
#include "quant/codec_table.h"

namespace lpsgd {

namespace {

class CpuCodec final : public Codec {
 public:
  CpuCodec(const CodecSpec& spec, CpuIsa isa)
      : Codec(spec), row_(codec_entry(spec.kind).row), kernels_(codec_entry(spec.kind).kernels(isa)) {}

  std::int64_t bucket(const TensorInfo& tensor) const override {
    if (!row_.bucketed) return unit;
    const std::int64_t values = spec_.bucket == CodecSpec::whole_tensor ? tensor.elements
                                : spec_.bucket == CodecSpec::column     ? tensor.columns().rows
                                                                        : spec_.bucket;
    return values > 1 ? values : 1;
  }

  std::size_t encoded_bytes(std::int64_t n, std::int64_t bucket) const override {
    return n > 0 ? table_bytes() + records_bytes(n, bucket) : 0;
  }
  std::size_t table_bytes() const override {
    return row_.table_bytes ? static_cast<std::size_t>(row_.table_bytes(spec_)) : 0;
  }
  bool carries_non_finite() const override { return !row_.hides_non_finite || !row_.hides_non_finite(spec_); }

  void make_table(const float* values, const float* residual, std::int64_t n, std::int64_t bucket,
                  std::byte* table) const override {
    if (table_bytes() == 0) return;
    std::int64_t counts[table_cells] = {};
    kernels_.count(spec_, values, residual, n, bucket, counts);
    row_.make_table(spec_, counts, table);
  }

  bool encode(const float* values, float* residual, std::int64_t n, std::int64_t first, std::int64_t bucket,
              const CodingContext& context, std::byte* out) const override {
    if (n == 0) return true;
    const std::size_t table = table_bytes();
    if (context.table && table > 0)
      std::memcpy(out, context.table, table);
    else
      make_table(values, residual, n, bucket, out);
    return kernels_.encode(spec_, out, values, residual, n, first, bucket, context, out + table);
  }

  bool decode(const std::byte* in, std::int64_t n, std::int64_t bucket, bool add, float* out) const override {
    return n == 0 || kernels_.decode(spec_, in, in + table_bytes(), n, bucket, add, out);
  }

  bool reduce(std::span<const std::byte* const> contributions, float* residual, std::int64_t n,
              std::int64_t first, std::int64_t bucket, const CodingContext& context,
              std::byte* out) const override {
    require(!contributions.empty(), "a mean over no ranks");
    if (n == 0) return true;
    const std::size_t table = table_bytes();
    const bool fused = kernels_.reduce && table == 0 && bucket <= kernels_.reduce_bucket;
    // Whole buckets at a time, few enough that their sum stays in the first-level cache.
    constexpr std::int64_t cached_values = 4096;
    const std::int64_t chunk = bucket * std::max<std::int64_t>(1, cached_values / bucket);
    thread_local Buffer<float> scratch;
    const auto wanted = static_cast<std::size_t>(fused ? bucket + unit : std::min(n, chunk));
    if (scratch.size() < wanted) scratch = Buffer<float>(wanted);
    float* mean = scratch.data();
    if (fused)
      return kernels_.reduce(spec_, contributions.data(), contributions.size(), residual, n, first, bucket,
                             context, mean, out);

    // Calls use(begin, count) for each chunk, with its mean at hand.
    const auto for_each_chunk = [&](auto use) {
      const float weight = 1.0f / static_cast<float>(contributions.size());
      for (std::int64_t begin = 0; begin < n; begin += chunk) {
        const std::int64_t m = std::min(chunk, n - begin);
        const std::size_t at = table + records_bytes(begin, bucket);
        for (std::size_t r = 0; r < contributions.size(); ++r)
          kernels_.decode(spec_, contributions[r], contributions[r] + at, m, bucket, r > 0, mean);
        for (std::int64_t i = 0; i < m; ++i) mean[i] *= weight;
        use(begin, m);
      }
    };
    if (table > 0) {
      std::int64_t counts[table_cells] = {};
      for_each_chunk([&](std::int64_t begin, std::int64_t m) {
        kernels_.count(spec_, mean, residual ? residual + begin : nullptr, m, bucket, counts);
      });
      row_.make_table(spec_, counts, out);
    }
    bool finite = true;
    for_each_chunk([&](std::int64_t begin, std::int64_t m) {
      finite &= kernels_.encode(spec_, out, mean, residual ? residual + begin : nullptr, m, first + begin,
                                bucket, context, out + table + records_bytes(begin, bucket));
    });
    return finite;
  }

 private:
  static constexpr std::int64_t unit = 64;  // of striping, where there are no buckets

  std::size_t records_bytes(std::int64_t n, std::int64_t bucket) const {
    const std::int64_t full = n / bucket, rest = n % bucket;
    return static_cast<std::size_t>((full > 0 ? full * row_.record_bytes(spec_, bucket) : 0) +
                                    (rest > 0 ? row_.record_bytes(spec_, rest) : 0));
  }

  const CodecRow& row_;
  CodecKernels kernels_;
};

}  // namespace

const char* to_text(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::baseline:
      return "baseline";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
  }
  return "?";
}

namespace {

bool has_f16c() {  // not every compiler's __builtin_cpu_supports knows it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

std::vector<CpuIsa> cpu_isas() {
  std::vector<CpuIsa> isas{CpuIsa::baseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
      __builtin_cpu_supports("popcnt")) {
    isas.push_back(CpuIsa::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      isas.push_back(CpuIsa::avx512);
  }
  return isas;
}

std::shared_ptr<const Codec> make_cpu_codec(const CodecSpec& spec, CpuIsa isa) {
  return std::make_shared<CpuCodec>(spec, isa);
}

std::shared_ptr<const Codec> make_codec(const CodecSpec& spec) {
  static const CpuIsa best = cpu_isas().back();
  return make_cpu_codec(spec, best);
}

}  // namespace lpsgd
