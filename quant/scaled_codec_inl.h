// For codecs that are a rule (quant/scaled_rule_device.h): scaled_kernels<Rule>() returns the kernels for the
// target of this compilation, an instruction set of the CPU or the GPU.
#pragma once

#ifdef LPSGD_CODEC_ON_CUDA
#include "quant/cuda/scaled_device.h"
#else
#include "quant/cpu_scaled_inl.h"
#endif
