// The kernels for machines with avx2 instructions; nn/CMakeLists.txt sets the compiler's flags.
#define LPSGD_KERNELS kernels_avx2
#include "nn/cpu/kernels_body.h"
