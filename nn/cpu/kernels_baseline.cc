// The kernels for any machine of the architecture.
#define LPSGD_KERNELS kernels_baseline
#include "nn/cpu/kernels_body.h"
