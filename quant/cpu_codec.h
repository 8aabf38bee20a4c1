// The CPU driver behind make_codec: the kernels are compiled once per instruction set from the same text
// (quant/cpu_*_inl.h) and give the same bytes; which one runs is chosen at run time. Internal to quant and
// its tests.
#pragma once

#include <memory>
#include <vector>

#include "quant/codec.h"

namespace lpsgd {

enum class CpuIsa : std::uint8_t {
  baseline,  // x86-64
  avx2,      // AVX2, FMA, F16C
  avx512,    // AVX-512 F, BW, DQ, VL
};

const char* to_text(CpuIsa isa);
/// The instruction sets of this machine, the best last.
std::vector<CpuIsa> cpu_isas();

/// The codec for `spec` on one of cpu_isas().
std::shared_ptr<const Codec> make_cpu_codec(const CodecSpec& spec, CpuIsa isa);

// ---- Kernels: Codec::encode and Codec::decode with the options as an argument.

using EncodeKernel = bool (*)(const CodecSpec& spec, const float* values, float* residual, std::int64_t n,
                              std::int64_t first, std::int64_t bucket, const CodingContext& context,
                              std::byte* out);
using DecodeKernel = bool (*)(const CodecSpec& spec, const std::byte* in, std::int64_t n, std::int64_t bucket,
                              bool add, float* out);
struct CodecKernels {
  EncodeKernel encode = nullptr;
  DecodeKernel decode = nullptr;
};

namespace baseline {
CodecKernels codec_kernels(CodecSpec::Kind kind);
}
namespace avx2 {
CodecKernels codec_kernels(CodecSpec::Kind kind);
}
namespace avx512 {
CodecKernels codec_kernels(CodecSpec::Kind kind);
}

}  // namespace lpsgd
