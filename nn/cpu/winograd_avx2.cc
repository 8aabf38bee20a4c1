// Winograd's loops for machines with AVX2 and multiply-add; nn/CMakeLists.txt sets the compiler's flags.
#define LPSGD_KERNELS kernels_avx2
#define LPSGD_KERNELS_NAME "avx2"
#include "nn/cpu/winograd_body.h"
