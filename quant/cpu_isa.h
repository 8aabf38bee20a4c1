// Instruction sets of the CPU. The codecs' kernels are compiled once for each from the same text
// (quant/codecs, quant/cpu_*_inl.h) and give the same bytes; which ones run is chosen at run time.
#pragma once

#include <cstdint>
#include <vector>

namespace lpsgd {

enum class CpuIsa : std::uint8_t {
  baseline,  // x86-64
  avx2,      // AVX2, FMA, F16C
  avx512,    // AVX-512 F, BW, DQ, VL
};

const char* to_text(CpuIsa isa);
/// The instruction sets of this machine, the best last.
const std::vector<CpuIsa>& cpu_isas();

}  // namespace lpsgd
