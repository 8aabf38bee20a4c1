// The kernels for machines with avx512 instructions; nn/CMakeLists.txt sets the compiler's flags.
#define LPSGD_KERNELS kernels_avx512
#include "nn/cpu/kernels_body.h"
