// The CPU driver behind make_codec: the kernels are compiled once per instruction set from the same text
// (quant/codecs, quant/cpu_*_inl.h) and give the same bytes; which one runs is chosen at run time. Internal
// to quant, its tests and its benchmark.
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

}  // namespace lpsgd
