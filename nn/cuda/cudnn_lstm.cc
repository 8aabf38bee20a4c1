// An LSTM layer by cuDNN's RNN functions, in float32 or TF32. All sequences run to the last frame. Frames
// behind the end of a sequence are set to 0 in the input and in the output. So lengths stay on the device,
// and a captured pass is valid for other lengths. The state of a frame does not depend on later frames. The
// state after the last frame is kept for the next pass, of sequences that have the full length.
#include <algorithm>
#include <array>

#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

/// Owns a cuDNN descriptor.
template <class Handle, cudnnStatus_t (*create)(Handle*), cudnnStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() { check(create(&handle_)); }
  ~Owned() { destroy(handle_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Rnn = Owned<cudnnRNNDescriptor_t, cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor>;
using RnnData = Owned<cudnnRNNDataDescriptor_t, cudnnCreateRNNDataDescriptor, cudnnDestroyRNNDataDescriptor>;
using Tensor = Owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using Dropout = Owned<cudnnDropoutDescriptor_t, cudnnCreateDropoutDescriptor, cudnnDestroyDropoutDescriptor>;

class CudnnLstmOp final : public Op {
 public:
  CudnnLstmOp(Context& context, const Binding& b, const LstmDesc& desc)
      : context_(context),
        b_(b),
        cell_(static_cast<int>(desc.cell)),
        width_(static_cast<int>(b.shape[1])),
        features_(static_cast<int>(b.inputs[0].shape[1])),
        frames_(static_cast<int>(b.shape[0])),
        projected_(desc.projection > 0),
        bias_(desc.bias) {}

  /// False if cuDNN has no such LSTM.
  bool plan() {
    check(cudnnSetDropoutDescriptor(dropout_.get(), context_.cudnn, 0.0f, nullptr, 0, 0));
    const cudnnStatus_t status = cudnnSetRNNDescriptor_v8(
        rnn_.get(), CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, bias_ ? CUDNN_RNN_DOUBLE_BIAS : CUDNN_RNN_NO_BIAS,
        CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
        context_.compute == Compute::tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH, features_, cell_,
        projected_ ? width_ : cell_, 1, dropout_.get(), CUDNN_RNN_PADDED_IO_ENABLED);
    if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) return false;
    check(status);
    describe(x_, features_);
    describe(y_, width_);
    describe_state(h_, width_);
    describe_state(c_, cell_);
    std::size_t work = 0, reserve = 0, weights = 0;
    const cudnnStatus_t sizes =
        cudnnGetRNNTempSpaceSizes(context_.cudnn, rnn_.get(), mode(), x_.get(), &work, &reserve);
    if (CUDNN_STATUS_CATEGORY(sizes) == CUDNN_STATUS_NOT_SUPPORTED) return false;
    check(sizes);
    check(cudnnGetRNNWeightSpaceSize(context_.cudnn, rnn_.get(), &weights));

    work_bytes_ = work;
    const auto work_size = static_cast<std::int64_t>(work);
    if (work_size <= context_.workspace_limit)
      context_.keep_workspace(work_size);
    else
      own_work_ = context_.allocate(work_size);
    weight_bytes_ = weights;
    weights_ = context_.allocate(static_cast<std::int64_t>(weights));
    inputs_ = context_.array<float>(rows() * features_);
    outputs_ = context_.array<float>(rows() * width_);
    first_hidden_ = context_.array<float>(b_.batch * width_);
    first_cells_ = context_.array<float>(b_.batch * cell_);
    list_pieces(weights_, &ParameterView::value, values_);
    if (!b_.training) return true;
    reserve_bytes_ = reserve;
    reserve_ = context_.allocate(static_cast<std::int64_t>(reserve));
    weight_gradients_ = context_.allocate(static_cast<std::int64_t>(weights));
    input_gradients_ = context_.array<float>(rows() * features_);
    output_gradients_ = context_.array<float>(rows() * width_);
    list_pieces(weight_gradients_, &ParameterView::gradient, gradients_);
    return true;
  }

  void forward(const Pass& pass) override {
    const cudaStream_t s = context_.handle();
    const std::vector<float*>& carried = pass.training ? b_.carried : b_.carried_in_evaluation;
    mark(carried[0], first_hidden_, width_, context_.continues, 1);
    mark(carried[1], first_cells_, cell_, context_.continues, 1);
    for (const Piece& p : values_)
      check(cudaMemcpyAsync(p.space, p.arena, p.bytes, cudaMemcpyDeviceToDevice, s));
    check(
        launch_by_time(DataType::f32, b_.inputs[0].value, inputs_, shape(), features_, context_.lengths, s));
    check(cudnnRNNForward(context_.cudnn, rnn_.get(), mode(), nullptr, x_.get(), inputs_, y_.get(), outputs_,
                          h_.get(), first_hidden_, carried[0], c_.get(), first_cells_, carried[1],
                          weight_bytes_, weights_, work_bytes_, work(), reserve_bytes_, reserve_));
    mark(carried[0], carried[0], width_, context_.lengths, frames_);
    mark(carried[1], carried[1], cell_, context_.lengths, frames_);
    check(launch_by_sample(DataType::f32, outputs_, b_.output, shape(), width_, context_.lengths, s));
  }

  void backward() override {
    const cudaStream_t s = context_.handle();
    check(launch_by_time(DataType::f32, b_.output_gradients[0], output_gradients_, shape(), width_,
                         context_.lengths, s));
    check(cudnnRNNBackwardData_v8(context_.cudnn, rnn_.get(), nullptr, y_.get(), outputs_, output_gradients_,
                                  x_.get(), input_gradients_, h_.get(), first_hidden_, nullptr, nullptr,
                                  c_.get(), first_cells_, nullptr, nullptr, weight_bytes_, weights_,
                                  work_bytes_, work(), reserve_bytes_, reserve_));
    zero_bytes(weight_gradients_, weight_bytes_, context_.stream);
    check(cudnnRNNBackwardWeights_v8(context_.cudnn, rnn_.get(), CUDNN_WGRAD_MODE_ADD, nullptr, x_.get(),
                                     inputs_, h_.get(), first_hidden_, y_.get(), outputs_, weight_bytes_,
                                     weight_gradients_, work_bytes_, work(), reserve_bytes_, reserve_));
    for (const Piece& p : gradients_)
      check(cudaMemcpyAsync(p.arena, p.space, p.bytes, cudaMemcpyDeviceToDevice, s));
    if (b_.inputs[0].gradient)
      check(launch_by_sample(DataType::f32, input_gradients_, b_.inputs[0].gradient, shape(), features_,
                             context_.lengths, s));
  }

 private:
  /// A range that is contiguous both in the parameters' arena and in cuDNN's weight space.
  struct Piece {
    float *arena, *space;
    std::size_t bytes;
  };

  void* work() const {
    return own_work_ ? own_work_ : context_.workspace(static_cast<std::int64_t>(work_bytes_));
  }

  /// Both have the gates in the same order: i, f, g, o.
  template <class Member>
  void list_pieces(void* space, Member member, std::vector<Piece>& pieces) {
    // For each parameter: its first linear layer in cuDNN, how many it holds, and the size of one.
    struct LinearLayers {
      int first, count;
      bool bias;
      std::int64_t elements;
    };
    std::vector<LinearLayers> layout{{0, 4, false, std::int64_t{cell_} * features_},
                                     {4, 4, false, std::int64_t{cell_} * width_}};
    if (bias_) layout.insert(layout.end(), {{0, 4, true, cell_}, {4, 4, true, cell_}});
    if (projected_) layout.push_back({8, 1, false, std::int64_t{width_} * cell_});
    const Tensor matrix, vector;
    for (std::size_t p = 0; p < layout.size(); ++p) {
      const auto& [first, count, bias, elements] = layout[p];
      const float* arena = b_.parameters[p].*member;
      for (int i = 0; i < count; ++i) {
        std::array<void*, 2> at{};
        check(cudnnGetRNNWeightParams(context_.cudnn, rnn_.get(), 0, weight_bytes_, space, first + i,
                                      matrix.get(), &at[0], vector.get(), &at[1]));
        auto* const there = static_cast<float*>(at[bias ? 1 : 0]);
        auto* const here = const_cast<float*>(arena) + i * elements;
        require(there != nullptr && elements_of(bias ? vector : matrix) == elements,
                "cuDNN's LSTM has weights of another size");
        const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
        if (!pieces.empty() && pieces.back().arena + pieces.back().bytes / sizeof(float) == here &&
            pieces.back().space + pieces.back().bytes / sizeof(float) == there)
          pieces.back().bytes += bytes;
        else
          pieces.push_back({here, there, bytes});
      }
    }
  }

  static std::int64_t elements_of(const Tensor& tensor) {
    std::array<int, CUDNN_DIM_MAX> size{}, stride{};
    cudnnDataType_t type{};
    int dimensions = 0;
    check(cudnnGetTensorNdDescriptor(tensor.get(), 3, &type, &dimensions, size.data(), stride.data()));
    std::int64_t elements = 1;
    for (int i = 0; i < std::min(dimensions, 3); ++i) elements *= size[static_cast<std::size_t>(i)];
    return elements;
  }

  void describe(const RnnData& data, int width) const {
    const std::vector<int> lengths(static_cast<std::size_t>(b_.batch), frames_);
    float padding = 0;
    check(cudnnSetRNNDataDescriptor(data.get(), CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                    frames_, static_cast<int>(b_.batch), width, lengths.data(), &padding));
  }
  void describe_state(const Tensor& tensor, int width) const {
    const std::array<int, 3> size{1, static_cast<int>(b_.batch), width}, stride{size[1] * width, width, 1};
    check(cudnnSetTensorNdDescriptor(tensor.get(), CUDNN_DATA_FLOAT, 3, size.data(), stride.data()));
  }

  /// The samples' rows of `from` (batch, width) whose mark is at least `least`, and zeros for the others.
  void mark(const float* from, float* to, int width, const std::int32_t* marks, int least) {
    check(launch_marked_rows(DataType::f32, from, DataType::f32, to, b_.batch, width, marks, least,
                             context_.handle()));
  }

  cudnnForwardMode_t mode() const { return b_.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE; }
  std::int64_t rows() const { return frames_ * b_.batch; }
  SequenceShape shape() const { return {b_.batch, frames_}; }

  Context& context_;
  Binding b_;
  int cell_, width_, features_, frames_;  // width: of the state, the cell's or projection's
  bool projected_, bias_;
  Dropout dropout_;
  Rnn rnn_;
  RnnData x_, y_;
  Tensor h_, c_;
  std::vector<Piece> values_, gradients_;
  std::size_t work_bytes_ = 0, weight_bytes_ = 0, reserve_bytes_ = 0;
  void *own_work_ = nullptr, *weights_ = nullptr, *weight_gradients_ = nullptr, *reserve_ = nullptr;
  float *first_hidden_ = nullptr, *first_cells_ = nullptr;  // the state that the sequences start from
  // By time.
  float *inputs_ = nullptr, *outputs_ = nullptr, *input_gradients_ = nullptr, *output_gradients_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_cudnn_lstm(Context& context, const Binding& binding, const LstmDesc& desc) {
  // With bfloat16 the weights' gradients would be bfloat16, too. And cuDNN does not promise that sums are
  // equal from run to run.
  if (context.type != DataType::f32 || context.deterministic) return nullptr;
  auto op = std::make_unique<CudnnLstmOp>(context, binding, desc);
  return op->plan() ? std::move(op) : nullptr;
}

}  // namespace lpsgd::cuda
