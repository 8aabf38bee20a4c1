// cuDNN's handle, for the files that play it.
#pragma once

#include <cudnn.h>

struct cudnnContext {
  cudaStream_t stream = nullptr;
};
