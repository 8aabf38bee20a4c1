#include "quant/cpu_codec.h"

#include "core/error.h"
#include "quant/codec_math_device.h"
#include "quant/codec_table.h"

namespace lpsgd {

namespace {

CodecKernels kernels_of(CodecSpec::Kind kind, CpuIsa isa) {
  switch (isa) {
    case CpuIsa::baseline:
      return baseline::codec_kernels(kind);
    case CpuIsa::avx2:
      return avx2::codec_kernels(kind);
    case CpuIsa::avx512:
      return avx512::codec_kernels(kind);
  }
  return {};
}

class CpuCodec final : public Codec {
 public:
  CpuCodec(const CodecSpec& spec, CpuIsa isa)
      : Codec(spec), row_(codec_row(spec.kind)), kernels_(kernels_of(spec.kind, isa)) {
    require(kernels_.encode && kernels_.decode, "a codec of the table has no kernels");
  }

  std::int64_t bucket(const TensorInfo& tensor) const override {
    if (!row_.bucketed) return 64;
    const std::int64_t values = spec_.bucket == CodecSpec::whole_tensor ? tensor.elements
                                : spec_.bucket == CodecSpec::column     ? tensor.columns().rows
                                                                        : spec_.bucket;
    return values > 1 ? values : 1;
  }

  std::size_t encoded_bytes(std::int64_t n, std::int64_t bucket) const override {
    const CodecSize size = row_.size(spec_);
    if (!row_.bucketed) return static_cast<std::size_t>(n * size.bits / 8);
    return static_cast<std::size_t>(records_bytes(n, bucket, size.scales, size.bits));
  }

  bool encode(const float* values, float* residual, std::int64_t n, std::int64_t first, std::int64_t bucket,
              const CodingContext& context, std::byte* out) const override {
    return kernels_.encode(spec_, values, residual, n, first, bucket, context, out);
  }

  bool decode(const std::byte* in, std::int64_t n, std::int64_t bucket, bool add, float* out) const override {
    return kernels_.decode(spec_, in, n, bucket, add, out);
  }

 private:
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

std::vector<CpuIsa> cpu_isas() {
  std::vector<CpuIsa> isas{CpuIsa::baseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
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
