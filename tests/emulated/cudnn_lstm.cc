// cuDNN's LSTM of one layer in one direction, with or without bias and projection, as lpsgd uses it: rows by
// (frame, sample), float32, with or without states (sample) at either end. Sums are taken in double.
#include <cudnn.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/emulated/cudnn.h"
#include "tests/emulated/machine.h"
#include "tests/emulated/numbers.h"

using namespace lpsgd::emulated;

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int> size, stride;
};
struct cudnnRNNDataStruct {
  int frames = 0, batch = 0, width = 0;
};
struct cudnnDropoutStruct {};
struct cudnnRNNStruct {
  int inputs = 0, cells = 0, outputs = 0;
  bool bias = false, tf32 = false;

  bool projected() const { return outputs != cells; }
  // Offsets of the weights: four matrices for the input, four for the last output, the projection, eight
  // biases, with a gap behind each kind.
  static constexpr std::int64_t gap = 32;
  std::int64_t input_weights(int gate) const { return std::int64_t{gate} * cells * inputs; }
  std::int64_t output_weights(int gate) const {
    return input_weights(4) + gap + std::int64_t{gate} * cells * outputs;
  }
  std::int64_t projection() const { return output_weights(4) + gap; }
  std::int64_t biases(int which) const {
    return projection() + (projected() ? std::int64_t{outputs} * cells : 0) + gap +
           std::int64_t{which} * cells;
  }
  std::int64_t weights() const { return biases(bias ? 8 : 0); }
};

namespace {

/// A pass's state in the reserve space: for each frame and sample the gates, the gradients of their sums, the
/// cell, and the output before the projection.
struct Reserve {
  std::int64_t rows, cells;
  float* at;
  float* gates(std::int64_t row) const { return at + row * 4 * cells; }
  float* gradients(std::int64_t row) const { return at + (rows + row) * 4 * cells; }
  float* cell(std::int64_t row) const { return at + rows * 8 * cells + row * cells; }
  float* output(std::int64_t row) const { return at + rows * 9 * cells + row * cells; }
  std::int64_t values() const { return rows * 10 * cells; }
};

/// What a sequence starts from, and what it leaves; null: zeros, and nothing.
struct FirstState {
  const float *hidden, *cells;
};
struct LastState {
  float *hidden, *cells;
};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

std::vector<float> operands(const cudnnRNNStruct& rnn, const float* from, std::int64_t n) {
  if (!is_device_memory(from, static_cast<std::size_t>(n) * sizeof *from))
    undefined("an LSTM's array beyond its memory");
  return all_of(from, false, n, rnn.tf32);
}

/// y[i] += the sum of m(i, j) x[j].
void add_product(const float* m, std::int64_t rows, std::int64_t columns, const float* x, double* y) {
  for (std::int64_t i = 0; i < rows; ++i) y[i] += dot(m + i * columns, x, columns);
}
/// x[j] += the sum of m(i, j) y[i].
void add_transposed_product(const float* m, std::int64_t rows, std::int64_t columns, const float* y,
                            double* x) {
  for (std::int64_t i = 0; i < rows; ++i) add_scaled(static_cast<double>(y[i]), m + i * columns, x, columns);
}

/// The cell before `row`.
double cell_before(const Reserve& kept, std::int64_t row, std::int64_t batch, std::int64_t c,
                   const float* first) {
  if (row >= batch) return static_cast<double>(kept.cell(row - batch)[c]);
  return first == nullptr ? 0 : static_cast<double>(first[row * kept.cells + c]);
}

void forward(const cudnnRNNStruct& rnn, std::int64_t frames, std::int64_t batch, const float* x, float* y,
             FirstState first, LastState left, const float* weights, const Reserve& kept) {
  const std::int64_t cells = rnn.cells, outputs = rnn.outputs;
  const std::vector<float> in = operands(rnn, x, frames * batch * rnn.inputs),
                           w = operands(rnn, weights, rnn.weights());
  for (std::int64_t row = 0; row < frames * batch; ++row) {
    const float* before = row < batch ? first.hidden : y - batch * outputs;
    const std::vector<float> last =
        before == nullptr ? std::vector<float>() : operands(rnn, before + row * outputs, outputs);
    for (int gate = 0; gate < 4; ++gate) {
      std::vector<double> sum(static_cast<std::size_t>(cells));
      add_product(w.data() + rnn.input_weights(gate), cells, rnn.inputs, in.data() + row * rnn.inputs,
                  sum.data());
      if (before != nullptr)
        add_product(w.data() + rnn.output_weights(gate), cells, outputs, last.data(), sum.data());
      for (std::int64_t c = 0; c < cells; ++c) {
        double s = sum[static_cast<std::size_t>(c)];
        for (const int which : {gate, gate + 4})
          if (rnn.bias) s += static_cast<double>(weights[rnn.biases(which) + c]);
        kept.gates(row)[gate * cells + c] = static_cast<float>(gate == 2 ? std::tanh(s) : sigmoid(s));
      }
    }
    for (std::int64_t c = 0; c < cells; ++c) {
      const float* g = kept.gates(row);
      const auto gate = [&](int k) { return static_cast<double>(g[k * cells + c]); };
      const double old = cell_before(kept, row, batch, c, first.cells);
      const double cell = gate(1) * old + gate(0) * gate(2);
      kept.cell(row)[c] = static_cast<float>(cell);
      kept.output(row)[c] = static_cast<float>(gate(3) * std::tanh(cell));
      if (!rnn.projected()) y[row * outputs + c] = kept.output(row)[c];
    }
    if (!rnn.projected()) continue;
    std::vector<double> out(static_cast<std::size_t>(outputs));
    add_product(w.data() + rnn.projection(), outputs, cells, operands(rnn, kept.output(row), cells).data(),
                out.data());
    for (std::int64_t o = 0; o < outputs; ++o)
      y[row * outputs + o] = static_cast<float>(out[static_cast<std::size_t>(o)]);
  }
  const std::int64_t end = (frames - 1) * batch;
  if (left.hidden != nullptr) std::copy_n(y + end * outputs, batch * outputs, left.hidden);
  if (left.cells != nullptr) std::copy_n(kept.cell(end), batch * cells, left.cells);
}

void backward_data(const cudnnRNNStruct& rnn, std::int64_t frames, std::int64_t batch, const float* dy,
                   float* dx, const float* first_cells, const float* weights, const Reserve& kept,
                   float* whole) {
  const std::int64_t cells = rnn.cells, outputs = rnn.outputs;
  const std::vector<float> w = operands(rnn, weights, rnn.weights());
  std::vector<double> dcell(static_cast<std::size_t>(batch * cells));
  for (std::int64_t row = frames * batch - 1; row >= 0; --row) {
    const std::int64_t behind = row + batch, n = row % batch;
    // The output's gradient: from the layer above, and from the next frame.
    std::vector<double> d(static_cast<std::size_t>(outputs));
    for (std::int64_t o = 0; o < outputs; ++o)
      d[static_cast<std::size_t>(o)] = static_cast<double>(dy[row * outputs + o]);
    if (behind < frames * batch) {
      const std::vector<float> g = operands(rnn, kept.gradients(behind), 4 * cells);
      for (int gate = 0; gate < 4; ++gate)
        add_transposed_product(w.data() + rnn.output_weights(gate), cells, outputs, g.data() + gate * cells,
                               d.data());
    }
    for (std::int64_t o = 0; o < outputs; ++o)
      whole[row * outputs + o] = static_cast<float>(d[static_cast<std::size_t>(o)]);
    if (rnn.projected()) {
      std::vector<double> wide(static_cast<std::size_t>(cells));
      add_transposed_product(w.data() + rnn.projection(), outputs, cells,
                             operands(rnn, whole + row * outputs, outputs).data(), wide.data());
      d = wide;
    }
    for (std::int64_t c = 0; c < cells; ++c) {
      const auto gate = [&](int k) { return static_cast<double>(kept.gates(row)[k * cells + c]); };
      const double i = gate(0), f = gate(1), g = gate(2), o = gate(3);
      const double top = std::tanh(static_cast<double>(kept.cell(row)[c])),
                   h = d[static_cast<std::size_t>(c)];
      const double old = cell_before(kept, row, batch, c, first_cells);
      double& dc = dcell[static_cast<std::size_t>(n * cells + c)];
      dc += h * o * (1 - top * top);
      const double sums[] = {dc * g * i * (1 - i), dc * old * f * (1 - f), dc * i * (1 - g * g),
                             h * top * o * (1 - o)};
      for (int k = 0; k < 4; ++k) kept.gradients(row)[k * cells + c] = static_cast<float>(sums[k]);
      dc *= f;
    }
    std::vector<double> in(static_cast<std::size_t>(rnn.inputs));
    const std::vector<float> g = operands(rnn, kept.gradients(row), 4 * cells);
    for (int gate = 0; gate < 4; ++gate)
      add_transposed_product(w.data() + rnn.input_weights(gate), cells, rnn.inputs, g.data() + gate * cells,
                             in.data());
    for (std::int64_t k = 0; k < rnn.inputs; ++k)
      dx[row * rnn.inputs + k] = static_cast<float>(in[static_cast<std::size_t>(k)]);
  }
}

/// dw(i, j) += the sum over rows of g[i] x[j].
void add_outer(std::int64_t rows, const auto& g, std::int64_t height, const auto& x, std::int64_t width,
               float* dw) {
  std::vector<double> sum(static_cast<std::size_t>(height * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float *gs = g(row), *xs = x(row);
    if (xs == nullptr) continue;
    for (std::int64_t i = 0; i < height; ++i)
      add_scaled(static_cast<double>(gs[i]), xs, sum.data() + i * width, width);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) dw[i] += static_cast<float>(sum[i]);
}

void backward_weights(const cudnnRNNStruct& rnn, std::int64_t frames, std::int64_t batch, const float* x,
                      const float* first_hidden, const float* y, float* dw, const Reserve& kept,
                      const float* whole) {
  const std::int64_t rows = frames * batch, cells = rnn.cells, outputs = rnn.outputs;
  const std::vector<float> in = operands(rnn, x, rows * rnn.inputs), out = operands(rnn, y, rows * outputs),
                           sums = operands(rnn, kept.gradients(0), rows * 4 * cells),
                           above = operands(rnn, whole, rows * outputs),
                           full = operands(rnn, kept.output(0), rows * cells),
                           first = first_hidden == nullptr ? std::vector<float>()
                                                           : operands(rnn, first_hidden, batch * outputs);
  for (int gate = 0; gate < 4; ++gate) {
    const auto g = [&](std::int64_t row) { return sums.data() + row * 4 * cells + gate * cells; };
    add_outer(
        rows, g, cells, [&](std::int64_t row) { return in.data() + row * rnn.inputs; }, rnn.inputs,
        dw + rnn.input_weights(gate));
    add_outer(
        rows, g, cells,
        [&](std::int64_t row) -> const float* {
          if (row >= batch) return out.data() + (row - batch) * outputs;
          return first_hidden == nullptr ? nullptr : first.data() + row * outputs;
        },
        outputs, dw + rnn.output_weights(gate));
    for (const int which : {gate, gate + 4})
      for (std::int64_t c = 0; rnn.bias && c < cells; ++c) {
        double sum = 0;
        for (std::int64_t row = 0; row < rows; ++row)
          sum += static_cast<double>(kept.gradients(row)[gate * cells + c]);
        dw[rnn.biases(which) + c] += static_cast<float>(sum);
      }
  }
  if (rnn.projected())
    add_outer(
        rows, [&](std::int64_t row) { return above.data() + row * outputs; }, outputs,
        [&](std::int64_t row) { return full.data() + row * cells; }, cells, dw + rnn.projection());
}

std::size_t work_bytes(const cudnnRNNStruct& rnn, std::int64_t rows) {
  return static_cast<std::size_t>(rows * rnn.outputs) * sizeof(float);
}

/// Whether a pass is given as much memory as cuDNN asked for.
bool has_room(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
              cudnnRNNDataDescriptor_t data, std::size_t weights, std::size_t work, std::size_t reserve) {
  std::size_t work_needed = 0, reserve_needed = 0, weights_needed = 0;
  cudnnGetRNNTempSpaceSizes(handle, rnn, mode, data, &work_needed, &reserve_needed);
  cudnnGetRNNWeightSpaceSize(handle, rnn, &weights_needed);
  return weights == weights_needed && work >= work_needed && reserve >= reserve_needed;
}

}  // namespace

#define LPSGD_OWNED(Name, Struct)                              \
  cudnnStatus_t cudnnCreate##Name##Descriptor(Struct** made) { \
    *made = new Struct;                                        \
    return CUDNN_STATUS_SUCCESS;                               \
  }                                                            \
  cudnnStatus_t cudnnDestroy##Name##Descriptor(Struct* made) { \
    delete made;                                               \
    return CUDNN_STATUS_SUCCESS;                               \
  }
LPSGD_OWNED(RNN, cudnnRNNStruct)
LPSGD_OWNED(RNNData, cudnnRNNDataStruct)
LPSGD_OWNED(Tensor, cudnnTensorStruct)
LPSGD_OWNED(Dropout, cudnnDropoutStruct)

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int dimensions,
                                         const int size[], const int stride[]) {
  tensor->type = type;
  tensor->size.assign(size, size + dimensions);
  tensor->stride.assign(stride, stride + dimensions);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int max, cudnnDataType_t* type,
                                         int* dimensions, int size[], int stride[]) {
  *type = tensor->type;
  *dimensions = static_cast<int>(tensor->size.size());
  for (int i = 0; i < std::min(max, *dimensions); ++i) {
    size[i] = tensor->size[static_cast<std::size_t>(i)];
    stride[i] = tensor->stride[static_cast<std::size_t>(i)];
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float probability, void*,
                                        std::size_t, unsigned long long) {
  return probability == 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t input, cudnnDataType_t type,
                                       cudnnDataType_t precision, cudnnMathType_t math, std::int32_t inputs,
                                       std::int32_t cells, std::int32_t outputs, std::int32_t layers,
                                       cudnnDropoutDescriptor_t, std::uint32_t flags) {
  if (mode != CUDNN_LSTM || direction != CUDNN_UNIDIRECTIONAL || input != CUDNN_LINEAR_INPUT || layers != 1 ||
      type != CUDNN_DATA_FLOAT || precision != CUDNN_DATA_FLOAT || flags != CUDNN_RNN_PADDED_IO_ENABLED ||
      (bias != CUDNN_RNN_DOUBLE_BIAS && bias != CUDNN_RNN_NO_BIAS) || outputs > cells)
    return CUDNN_STATUS_NOT_SUPPORTED;
  *rnn = {inputs, cells, outputs, bias == CUDNN_RNN_DOUBLE_BIAS, math != CUDNN_FMA_MATH};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int frames, int batch, int width,
                                        const int lengths[], void*) {
  if (type != CUDNN_DATA_FLOAT || layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED)
    return CUDNN_STATUS_NOT_SUPPORTED;
  for (int n = 0; n < batch; ++n)
    if (lengths[n] != frames) return CUDNN_STATUS_NOT_SUPPORTED;
  *data = {frames, batch, width};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, std::size_t* work, std::size_t* reserve) {
  const std::int64_t rows = std::int64_t{x->frames} * x->batch;
  const auto state = static_cast<std::size_t>(Reserve{rows, rnn->cells, nullptr}.values()) * sizeof(float);
  const bool trains = mode == CUDNN_FWD_MODE_TRAINING;
  *work = work_bytes(*rnn, rows) + (trains ? 0 : state);
  *reserve = trains ? state + work_bytes(*rnn, rows) : 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t rnn, std::size_t* bytes) {
  *bytes = static_cast<std::size_t>(rnn->weights()) * sizeof(float);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t rnn, std::int32_t layer,
                                      std::size_t bytes, const void* space, std::int32_t number,
                                      cudnnTensorDescriptor_t matrix, void** matrix_at,
                                      cudnnTensorDescriptor_t vector, void** vector_at) {
  if (layer != 0 || number < 0 || number > 8 || (number == 8 && !rnn->projected()) ||
      bytes != static_cast<std::size_t>(rnn->weights()) * sizeof(float))
    return CUDNN_STATUS_BAD_PARAM;
  auto* base = static_cast<float*>(const_cast<void*>(space));
  const int rows = number == 8 ? rnn->outputs : rnn->cells;
  const int columns = number == 8 ? rnn->cells : number < 4 ? rnn->inputs : rnn->outputs;
  matrix->size = {1, rows, columns};
  matrix->stride = {rows * columns, columns, 1};
  *matrix_at = base + (number == 8  ? rnn->projection()
                       : number < 4 ? rnn->input_weights(number)
                                    : rnn->output_weights(number - 4));
  vector->size = {1, rows, 1};
  vector->stride = {rows, 1, 1};
  *vector_at = rnn->bias && number < 8 ? base + rnn->biases(number) : nullptr;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const std::int32_t[], cudnnRNNDataDescriptor_t x_data, const void* x,
                              cudnnRNNDataDescriptor_t, void* y, cudnnTensorDescriptor_t, const void* h_first,
                              void* h_last, cudnnTensorDescriptor_t, const void* c_first, void* c_last,
                              std::size_t weight_size, const void* weights, std::size_t work_size, void* work,
                              std::size_t reserve_size, void* reserve) {
  const bool trains = mode == CUDNN_FWD_MODE_TRAINING;
  if (!has_room(handle, rnn, mode, x_data, weight_size, work_size, reserve_size))
    return CUDNN_STATUS_BAD_PARAM;
  const std::int64_t frames = x_data->frames, batch = x_data->batch;
  queue(handle->stream, [=, rnn = *rnn] {
    forward(rnn, frames, batch, static_cast<const float*>(x), static_cast<float*>(y),
            {static_cast<const float*>(h_first), static_cast<const float*>(c_first)},
            {static_cast<float*>(h_last), static_cast<float*>(c_last)}, static_cast<const float*>(weights),
            {frames * batch, rnn.cells, static_cast<float*>(trains ? reserve : work)});
  });
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const std::int32_t[],
                                      cudnnRNNDataDescriptor_t y_data, const void*, const void* dy,
                                      cudnnRNNDataDescriptor_t, void* dx, cudnnTensorDescriptor_t,
                                      const void*, const void*, void*, cudnnTensorDescriptor_t,
                                      const void* c_first, const void*, void*, std::size_t weight_size,
                                      const void* weights, std::size_t work_size, void*,
                                      std::size_t reserve_size, void* reserve) {
  if (!has_room(handle, rnn, CUDNN_FWD_MODE_TRAINING, y_data, weight_size, work_size, reserve_size))
    return CUDNN_STATUS_BAD_PARAM;
  const std::int64_t frames = y_data->frames, batch = y_data->batch;
  queue(handle->stream, [=, rnn = *rnn] {
    const Reserve kept{frames * batch, rnn.cells, static_cast<float*>(reserve)};
    backward_data(rnn, frames, batch, static_cast<const float*>(dy), static_cast<float*>(dx),
                  static_cast<const float*>(c_first), static_cast<const float*>(weights), kept,
                  kept.at + kept.values());
  });
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                         cudnnWgradMode_t mode, const std::int32_t[],
                                         cudnnRNNDataDescriptor_t x_data, const void* x,
                                         cudnnTensorDescriptor_t, const void* h_first,
                                         cudnnRNNDataDescriptor_t, const void* y, std::size_t weight_size,
                                         void* gradients, std::size_t work_size, void*,
                                         std::size_t reserve_size, void* reserve) {
  if (!has_room(handle, rnn, CUDNN_FWD_MODE_TRAINING, x_data, weight_size, work_size, reserve_size))
    return CUDNN_STATUS_BAD_PARAM;
  if (mode != CUDNN_WGRAD_MODE_ADD) return CUDNN_STATUS_NOT_SUPPORTED;
  const std::int64_t frames = x_data->frames, batch = x_data->batch;
  queue(handle->stream, [=, rnn = *rnn] {
    const Reserve kept{frames * batch, rnn.cells, static_cast<float*>(reserve)};
    backward_weights(rnn, frames, batch, static_cast<const float*>(x), static_cast<const float*>(h_first),
                     static_cast<const float*>(y), static_cast<float*>(gradients), kept,
                     kept.at + kept.values());
  });
  return CUDNN_STATUS_SUCCESS;
}
