// cuDNN as far as lpsgd uses it: the graph API for convolutions (cudnn_graph.h) and LSTMs of one layer.
// Declared as cuda_runtime_api.h is.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>

#include <cstddef>
#include <cstdint>

#define CUDNN_DIM_MAX 8

typedef struct cudnnTensorStruct* cudnnTensorDescriptor_t;
typedef struct cudnnDropoutStruct* cudnnDropoutDescriptor_t;
typedef struct cudnnRNNStruct* cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct* cudnnRNNDataDescriptor_t;

typedef enum { CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH } cudnnMathType_t;
typedef enum { CUDNN_FWD_MODE_INFERENCE, CUDNN_FWD_MODE_TRAINING } cudnnForwardMode_t;
typedef enum { CUDNN_WGRAD_MODE_ADD, CUDNN_WGRAD_MODE_SET } cudnnWgradMode_t;
typedef enum { CUDNN_RNN_ALGO_STANDARD } cudnnRNNAlgo_t;
typedef enum { CUDNN_RNN_RELU, CUDNN_RNN_TANH, CUDNN_LSTM, CUDNN_GRU } cudnnRNNMode_t;
typedef enum { CUDNN_RNN_NO_BIAS, CUDNN_RNN_SINGLE_INP_BIAS, CUDNN_RNN_DOUBLE_BIAS } cudnnRNNBiasMode_t;
typedef enum { CUDNN_UNIDIRECTIONAL, CUDNN_BIDIRECTIONAL } cudnnDirectionMode_t;
typedef enum { CUDNN_LINEAR_INPUT, CUDNN_SKIP_INPUT } cudnnRNNInputMode_t;
typedef enum {
  CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
  CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED
} cudnnRNNDataLayout_t;
/// A bit of the flags of cudnnSetRNNDescriptor_v8.
#define CUDNN_RNN_PADDED_IO_ENABLED 1U

extern "C" {

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int dimensions,
                                         const int size[], const int stride[]);
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int max, cudnnDataType_t* type,
                                         int* dimensions, int size[], int stride[]);
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* dropout);
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout);
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle,
                                        float probability, void* states, std::size_t bytes,
                                        unsigned long long seed);

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* rnn);
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn);
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algorithm,
                                       cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input,
                                       cudnnDataType_t type, cudnnDataType_t precision, cudnnMathType_t math,
                                       std::int32_t inputs, std::int32_t cells, std::int32_t outputs,
                                       std::int32_t layers, cudnnDropoutDescriptor_t dropout,
                                       std::uint32_t flags);
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* data);
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data);
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int frames, int batch, int width,
                                        const int lengths[], void* padding);

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        std::size_t* work, std::size_t* reserve);
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, std::size_t* bytes);
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, std::int32_t layer,
                                      std::size_t bytes, const void* space, std::int32_t number,
                                      cudnnTensorDescriptor_t matrix, void** matrix_address,
                                      cudnnTensorDescriptor_t bias, void** bias_address);

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const std::int32_t device_lengths[], cudnnRNNDataDescriptor_t x_data,
                              const void* x, cudnnRNNDataDescriptor_t y_data, void* y,
                              cudnnTensorDescriptor_t h, const void* h_first, void* h_last,
                              cudnnTensorDescriptor_t c, const void* c_first, void* c_last,
                              std::size_t weight_bytes, const void* weights, std::size_t work_bytes,
                              void* work, std::size_t reserve_bytes, void* reserve);
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                      const std::int32_t device_lengths[], cudnnRNNDataDescriptor_t y_data,
                                      const void* y, const void* dy, cudnnRNNDataDescriptor_t x_data,
                                      void* dx, cudnnTensorDescriptor_t h, const void* h_first,
                                      const void* dh_last, void* dh_first, cudnnTensorDescriptor_t c,
                                      const void* c_first, const void* dc_last, void* dc_first,
                                      std::size_t weight_bytes, const void* weights, std::size_t work_bytes,
                                      void* work, std::size_t reserve_bytes, void* reserve);
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                         cudnnWgradMode_t mode, const std::int32_t device_lengths[],
                                         cudnnRNNDataDescriptor_t x_data, const void* x,
                                         cudnnTensorDescriptor_t h, const void* h_first,
                                         cudnnRNNDataDescriptor_t y_data, const void* y,
                                         std::size_t weight_bytes, void* weight_gradients,
                                         std::size_t work_bytes, void* work, std::size_t reserve_bytes,
                                         void* reserve);

}  // extern "C"
