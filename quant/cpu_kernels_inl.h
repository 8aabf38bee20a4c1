// The kernels of every codec for one instruction set; cpu_kernels_*.cc define LPSGD_ISA and include this.
#pragma once

#include "quant/cpu_float_inl.h"
#include "quant/cpu_onebit_inl.h"
#include "quant/cpu_qsgd_inl.h"

namespace lpsgd::LPSGD_ISA {

CodecKernels codec_kernels(CodecSpec::Kind kind) {
  switch (kind) {
    case CodecSpec::Kind::none:
      return {float_encode<None>, float_decode<None>};
    case CodecSpec::Kind::fp16:
      return {float_encode<Fp16>, float_decode<Fp16>};
    case CodecSpec::Kind::bf16:
      return {float_encode<Bf16>, float_decode<Bf16>};
    case CodecSpec::Kind::onebit:
      return {onebit_encode, onebit_decode};
    case CodecSpec::Kind::qsgd:
      return {qsgd_encode, qsgd_decode};
    default:
      return {};
  }
}

}  // namespace lpsgd::LPSGD_ISA
