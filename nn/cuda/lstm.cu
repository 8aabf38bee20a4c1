// The parts of an LSTM that are not matrix products: the cells of one frame, and the change between rows
// ordered by time and by sample.
//
// Memory moved per value of b bytes, in single values of neighbouring threads:
//   by_time, by_sample, marked_rows   the bytes of both types
//   clear_tails                       b behind the ends of samples
//   cell            per cell and frame: 32 bytes of gates (read and written), 8 of the cell's state, b
//   cell_gradient   16 bytes of gates, 8 of states, 4 of dy, 8 of dc, 4 b
//   add             12
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

using Cell = maths::LstmCell<maths::One>;

template <class From, class To>
__global__ void by_time_kernel(const From* from, To* to, SequenceShape s, std::int64_t width,
                               const std::int32_t* lengths) {
  for (std::int64_t i = thread_number(); i < s.batch * s.frames * width; i += thread_count()) {
    const std::int64_t row = i / width, t = row / s.batch, n = row % s.batch;
    to[i] = from_float<To>(t < lengths[n] ? as_float(from[(n * s.frames + t) * width + i % width]) : 0.0f);
  }
}

template <class T>
__global__ void by_sample_kernel(const T* from, T* to, SequenceShape s, std::int64_t width,
                                 const std::int32_t* lengths) {
  for (std::int64_t i = thread_number(); i < s.batch * s.frames * width; i += thread_count()) {
    const std::int64_t row = i / width, t = row % s.frames, n = row / s.frames;
    to[i] = t < lengths[n] ? from[(t * s.batch + n) * width + i % width] : from_float<T>(0.0f);
  }
}

template <class T>
__global__ void clear_tails_kernel(T* values, SequenceShape s, std::int64_t width,
                                   const std::int32_t* lengths) {
  for (std::int64_t i = thread_number(); i < s.batch * s.frames * width; i += thread_count()) {
    const std::int64_t row = i / width;
    if (row % s.frames >= lengths[row / s.frames]) values[i] = from_float<T>(0.0f);
  }
}

template <class From, class To>
__global__ void marked_rows_kernel(const From* from, To* to, std::int64_t batch, std::int64_t width,
                                   const std::int32_t* marks, std::int64_t least) {
  for (std::int64_t i = thread_number(); i < batch * width; i += thread_count())
    to[i] = from_float<To>(marks[i / width] >= least ? as_float(from[i]) : 0.0f);
}

template <class T>
__global__ void cell_kernel(float* gates, const float* before, float* cell, T* output, std::int64_t batch,
                            std::int64_t cells, std::int64_t t, const std::int32_t* lengths) {
  for (std::int64_t i = thread_number(); i < batch * cells; i += thread_count()) {
    const std::int64_t n = i / cells;
    if (t >= lengths[n]) {
      cell[i] = 0;
      output[i] = from_float<T>(0.0f);
      continue;
    }
    float* g = gates + n * 4 * cells + i % cells;
    Cell at{g[0], g[cells], g[2 * cells], g[3 * cells]};
    at.forward(before[i]);
    g[0] = at.i, g[cells] = at.f, g[2 * cells] = at.g, g[3 * cells] = at.o;
    cell[i] = at.cell;
    output[i] = from_float<T>(at.output);
  }
}

template <class T>
__global__ void cell_gradient_kernel(const float* gates, const float* before, const float* cell,
                                     const float* output_gradient, float* dc, T* gate_gradients,
                                     std::int64_t batch, std::int64_t cells, std::int64_t t,
                                     const std::int32_t* lengths) {
  for (std::int64_t i = thread_number(); i < batch * cells; i += thread_count()) {
    const std::int64_t n = i / cells, first = n * 4 * cells + i % cells;
    T* to = gate_gradients + first;
    if (t >= lengths[n]) {
      to[0] = to[cells] = to[2 * cells] = to[3 * cells] = from_float<T>(0.0f);
      continue;
    }
    const float* g = gates + first;
    Cell at{g[0], g[cells], g[2 * cells], g[3 * cells], cell[i]};
    at.backward(before[i], output_gradient[i], dc[i]);
    to[0] = from_float<T>(at.i);
    to[cells] = from_float<T>(at.f);
    to[2 * cells] = from_float<T>(at.g);
    to[3 * cells] = from_float<T>(at.o);
  }
}

__global__ void add_kernel(const float* a, const float* b, float* sum, std::int64_t n) {
  for (std::int64_t i = thread_number(); i < n; i += thread_count()) sum[i] = a[i] + b[i];
}

}  // namespace

cudaError_t launch_by_time(DataType type, const void* from, void* to, SequenceShape shape, std::int64_t width,
                           const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH((by_time_kernel<T, T>), blocks_for(shape.batch * shape.frames * width), block_threads,
                 stream)
    (static_cast<const T*>(from), static_cast<T*>(to), shape, width, lengths);
  });
}

cudaError_t launch_by_time_f32(DataType type, const void* from, float* to, SequenceShape shape,
                               std::int64_t width, const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH((by_time_kernel<T, float>), blocks_for(shape.batch * shape.frames * width), block_threads,
                 stream)
    (static_cast<const T*>(from), to, shape, width, lengths);
  });
}

cudaError_t launch_by_sample(DataType type, const void* from, void* to, SequenceShape shape,
                             std::int64_t width, const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(by_sample_kernel<T>, blocks_for(shape.batch * shape.frames * width), block_threads, stream)
    (static_cast<const T*>(from), static_cast<T*>(to), shape, width, lengths);
  });
}

cudaError_t launch_clear_tails(DataType type, void* values, SequenceShape shape, std::int64_t width,
                               const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(clear_tails_kernel<T>, blocks_for(shape.batch * shape.frames * width), block_threads, stream)
    (static_cast<T*>(values), shape, width, lengths);
  });
}

cudaError_t launch_marked_rows(DataType from_type, const void* from, DataType to_type, void* to,
                               std::int64_t batch, std::int64_t width, const std::int32_t* marks,
                               std::int64_t least, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  with_type(from_type, [&]<class From>(From) {
    status = with_type(to_type, [&]<class To>(To) {
      LPSGD_LAUNCH((marked_rows_kernel<From, To>), blocks_for(batch * width), block_threads, stream)
      (static_cast<const From*>(from), static_cast<To*>(to), batch, width, marks, least);
    });
  });
  return status;
}

cudaError_t launch_lstm_cell(DataType type, float* gates, const float* before, float* cell, void* output,
                             std::int64_t batch, std::int64_t cells, std::int64_t t,
                             const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(cell_kernel<T>, blocks_for(batch * cells), block_threads, stream)
    (gates, before, cell, static_cast<T*>(output), batch, cells, t, lengths);
  });
}

cudaError_t launch_lstm_cell_gradient(DataType type, const float* gates, const float* before,
                                      const float* cell, const float* output_gradient, float* dc,
                                      void* gate_gradients, std::int64_t batch, std::int64_t cells,
                                      std::int64_t t, const std::int32_t* lengths, cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(cell_gradient_kernel<T>, blocks_for(batch * cells), block_threads, stream)
    (gates, before, cell, output_gradient, dc, static_cast<T*>(gate_gradients), batch, cells, t, lengths);
  });
}

cudaError_t launch_add_vectors(const float* a, const float* b, float* sum, std::int64_t n,
                               cudaStream_t stream) {
  LPSGD_LAUNCH(add_kernel, blocks_for(n), block_threads, stream)(a, b, sum, n);
  return cudaGetLastError();
}

}  // namespace lpsgd::cuda
