// Winograd's loops for machines with AVX-512; nn/CMakeLists.txt sets the compiler's flags.
#define LPSGD_KERNELS kernels_avx512
#define LPSGD_KERNELS_NAME "avx512"
#include "nn/cpu/winograd_body.h"
