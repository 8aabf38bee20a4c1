// The codecs' kernels for this instruction set; quant/CMakeLists.txt gives its compiler flags.
#define LPSGD_ISA avx512
#include "quant/cpu_kernels_inl.h"
