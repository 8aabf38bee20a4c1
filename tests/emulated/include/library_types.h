// The types of values that CUDA's libraries compute with, as far as lpsgd uses them.
#pragma once

typedef enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF } cudaDataType;
