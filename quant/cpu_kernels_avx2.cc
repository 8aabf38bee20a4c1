// The codecs' kernels for this instruction set; quant/CMakeLists.txt gives its compiler flags.
#define LPSGD_ISA avx2
#include "quant/cpu_kernels_inl.h"
