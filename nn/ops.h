// The operations that a backend implements, and the backend itself. Layers are written over these. An
// operation is planned once, with its memory, and then runs step after step without allocating or creating
// anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data_type.h"
#include "core/device.h"
#include "core/error.h"
#include "core/pixels.h"
#include "core/tensor_info.h"
#include "nn/activation.h"
#include "nn/branches.h"
#include "nn/compute.h"
#include "nn/dropout.h"
#include "nn/shape.h"

namespace lpsgd {

/// What the operations of one pass over the network need to know.
struct Pass {
  bool training = false;   // batch norm uses the batch's statistics, dropout drops values
  std::uint32_t step = 0;  // counted from the start of the run
  std::int64_t valid = 0;  // the first `valid` samples count
  // Of each sequence: its frames (empty: all have full length), and whether it continues the one that was at
  // its position in the previous pass of this kind (empty: none does).
  std::span<const std::int32_t> lengths = {}, continues = {};
  std::span<const PixelCrop> crops = {};  // of each sample; empty: each is its image's top left part
  double loss_divisor = 0;  // of the loss whose gradients backward computes; 0: the frames that are scored
  std::int64_t first = 0;   // position of the first sample among those of the rank's part of the global batch

  std::int64_t length(std::int64_t sample, std::int64_t frames) const {
    return lengths.empty() ? frames : lengths[static_cast<std::size_t>(sample)];
  }
  bool is_continued(std::int64_t sample) const {
    return !continues.empty() && continues[static_cast<std::size_t>(sample)] != 0;
  }
};

/// Bytes of the libraries' workspace that the parts of an operation take. `inputs`: of a backward without
/// parts, all of it.
struct Workspaces {
  std::int64_t forward = 0, inputs = 0, parameters = 0;
};

/// A planned operation. forward() and backward() work on the memory that it was planned with.
class Op {
 public:
  virtual ~Op() = default;
  virtual void forward(const Pass& pass) = 0;
  /// Reads the gradients of the output. Overwrites those of the inputs and of the parameters, but for
  /// ParameterView::adds.
  virtual void backward() = 0;
  /// Whether backward() is backward_parameters() and backward_inputs(), which may run at the same time.
  virtual bool has_backward_parts() const { return false; }
  virtual void backward_inputs() { require(false, "this operation's backward has no parts"); }
  virtual void backward_parameters() { require(false, "this operation's backward has no parts"); }
  /// Nothing: it runs on branch 0 alone (nn/branches.h). It uses what other operations use, too, besides
  /// its own memory and the workspace.
  virtual std::optional<Workspaces> workspaces() const { return std::nullopt; }
  /// Whether it uses what the operation that writes the first input keeps, reads that one's first input, and
  /// with the gradient of its own input writes those of that one's parameters.
  virtual bool shares_with_source() const { return false; }
  /// Writes the output of the last forward in training once more, with the same bits. For layers that
  /// can_recompute(); called at most once before each backward.
  virtual void recompute() { require(false, "this operation's output cannot be computed again"); }
  /// Whether backward computes again what Layer::kept_bytes() counts, so that forward keeps nothing.
  virtual bool recomputes_kept() const { return false; }
  /// Whether it computes its only input itself from what Binding::input_source reads, so that that operation
  /// does not write it.
  virtual bool computes_input() const { return false; }
  /// Whether forward in training does anything: others may do all of it.
  virtual bool runs_forward() const { return true; }
  /// Whether backward also runs that of Binding::rowwise_source.
  virtual bool runs_rowwise_source() const { return false; }
};

/// A trainable tensor in the arenas. `gradient` is null for inference.
struct ParameterView {
  const TensorInfo* info = nullptr;
  const float* value = nullptr;
  float* gradient = nullptr;
  bool adds = false;  // backward adds to the gradient: it holds that of a layer with the same parameter
};

/// An input of an operation and its gradient: (batch, shape...) in NHWC, both of `type`. `gradient` is null
/// if it is not needed.
struct InputView {
  Shape shape;
  DataType type = DataType::f32;
  const void* value = nullptr;
  void* gradient = nullptr;
};

/// The memory that an operation is planned with, which is the device's. Activations and their gradients are
/// of `type`, except the token numbers that an embedding reads: they are float32. Parameters, their gradients
/// and buffers are float32.
struct Binding {
  std::int64_t batch = 1;
  bool training = true;  // backward may be called; if not, passes in training compute as in evaluation
  RandomSource random;
  std::vector<InputView> inputs;
  Shape shape;  // of the output
  DataType type = DataType::f32;
  void* output = nullptr;
  /// Output and output gradient may be columns of a wider array (Layer::can_write_columns), whose rows are so
  /// many values apart; 0: they are arrays of their own.
  std::int64_t output_stride = 0;
  /// The terms whose sum is the output's gradient. One, unless the layer sums_gradients().
  std::vector<const void*> output_gradients;
  std::vector<ParameterView> parameters;
  std::vector<float*> buffers;
  /// What the layer carries from pass to pass (Layer::carried): (batch, shape...) each, float32. Passes in
  /// training have their own, and so have those in evaluation.
  std::vector<float*> carried, carried_in_evaluation;
  // The epilogue: output = relu(layer(inputs) + residual). Backward writes the gradient of that sum, which is
  // also the residual's gradient, to `masked`. It is null if no operation needs it.
  const void* residual = nullptr;
  bool relu = false;
  void* masked = nullptr;
  /// Null, or the operation that wrote the only input and ran right before this one. Backward may then hand
  /// it the input's gradient in parts, before that operation's own backward is called.
  Op* rowwise_source = nullptr;
  /// Null, or the operation that writes the first input, in every pass and before this one.
  Op* input_source = nullptr;
  /// PlanStep::has_one_reader. That operation writes the gradient that is the output's.
  bool has_one_reader = false;

  std::int64_t elements() const { return batch * elements_of(shape).value_or(0); }  // of the output
  std::int64_t row_stride() const {
    return output_stride != 0 ? output_stride : shape.back();
  }  // of the output
};

struct ConvDesc {
  Size2 kernel, stride, pad;
  std::int64_t filters = 1, groups = 1;
  bool bias = true;

  /// Whether the convolution is one matrix product: each output pixel reads one input pixel, the same one.
  bool is_product() const {
    return kernel == Size2{1, 1} && stride == Size2{1, 1} && pad == Size2{0, 0} && groups == 1;
  }
};

struct LstmDesc {
  std::int64_t cell = 1, projection = 0;  // projection 0: none
  bool bias = true;
};

struct PoolDesc {
  enum class Kind : std::uint8_t { max, average } kind = Kind::max;
  Size2 kernel, stride, pad;
  bool count_pad = true;  // for average: the padding counts in the divisor
};

struct BatchNormDesc {
  double eps = 1e-5, momentum = 0.1;
};

struct LayerNormDesc {
  double eps = 1e-5;
  bool bias = true;
};

struct GroupNormDesc {
  std::int64_t groups = 32;
  double eps = 1e-5;
};

struct AttentionDesc {
  std::int64_t heads = 1;
  bool causal = false;
  double dropout = 0;  // the probability that a weight becomes 0 in training
};

/// y = x * (k + alpha / size * sum of x^2 over the `size` channels around)^-beta.
struct LrnDesc {
  std::int64_t size = 5;
  double alpha = 1e-4, beta = 0.75, k = 1;
};

/// The loss of logits (batch, frames, classes).
struct LossDesc {
  std::int64_t batch = 1, frames = 1, classes = 1;
  /// e of the target (1 - e) onehot + e / classes, in training alone (Szegedy and others, 2016, section 7).
  double label_smoothing = 0;
};

/// Softmax cross-entropy, summed over the rows that are scored, which are each sample's frames within its
/// length, and divided by Pass::loss_divisor. Computed in float32 whatever the logits' type.
class LossOp {
 public:
  struct Sums {
    double loss = 0;
    std::int64_t top1 = 0, top5 = 0, scored = 0;
  };
  virtual ~LossOp() = default;
  /// Adds to the sums over the pass's valid samples, except rows whose label is -1. The rank of a label is
  /// the number of classes with a greater score, or with an equal score and a lower index.
  virtual void forward(const Pass& pass, std::span<const std::int32_t> labels) = 0;
  /// Writes the gradient for the labels of the last forward: (softmax - target) / divisor, and 0 for rows
  /// that are not scored.
  virtual void backward() = 0;
  /// The sums since the last take(). Waits for the device.
  virtual Sums take() = 0;
};

/// The input of a network whose samples arrive as bytes.
struct PixelDesc {
  std::int64_t batch = 1;
  ImageShape stored;  // of the images in a batch
  ImageShape sample;  // of the network's input
  Normalization norm;
  DataType type = DataType::f32;
  void* output = nullptr;  // (batch, sample)
};

/// Crops, mirrors and scales images, in one pass from bytes to the network's input.
class PixelInput {
 public:
  virtual ~PixelInput() = default;
  /// `pixels`: (batch, stored) on the host. `read` may be null; it is recorded behind the work that reads
  /// `pixels`. To be called after Backend::begin() with the same pass.
  virtual void upload(const Pass& pass, std::span<const std::uint8_t> pixels, Event* read) = 0;
};

/// A device's memory and operations. One object serves one network on one rank.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Which of their algorithms the libraries use, where there was a choice: one line each.
  virtual std::vector<std::string> choices() const { return {}; }
  /// The queue that operations run on.
  virtual StreamView stream() const { return {}; }
  /// Zeroed memory of the device, aligned to 64 bytes. It lives as long as the backend.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual std::unique_ptr<PixelInput> pixel_input(const PixelDesc& desc) = 0;
  /// Copy values between the host and memory of allocate(), where they have type `type`. `read` may be null;
  /// it is recorded behind the work that reads `from`. Copies from page-locked memory are only queued.
  virtual void upload(void* to, DataType type, std::span<const float> from, Event* read) = 0;
  virtual void download(std::span<float> to, DataType type, const void* from) = 0;
  /// Tells where the arena of the parameters is. Called once, before operations are made.
  virtual void parameters(std::span<const float>) {}
  /// Called before each pass with what operations read besides their inputs. Error if a label is not a class.
  virtual void begin(const Pass&, std::span<const std::int32_t>) {}
  /// Runs a part of a step, which always calls the same operations, so that a device may capture it and
  /// launch the graph. Backward is one part, or several segments with an index each. That of micro-batches
  /// before the last one has an index for the first and one for the others.
  enum class Part : std::uint8_t {
    train_forward,
    evaluate,
    micro_backward,
    backward,
    backward_segment,
    count
  };
  /// `on_branches`, if there is one, does the same by run_on_branches(). Only a captured part runs it.
  virtual void run(Part, std::size_t /*index*/, const std::function<void()>& work,
                   const std::function<void()>& /*on_branches*/) {
    work();
  }
  /// From now on the part calls other operations.
  virtual void forget(Part) {}
  /// Whether the part is captured, with all of its segments; and how many parts and segments are captured.
  virtual bool is_captured(Part) const { return false; }
  virtual std::size_t captured() const { return 0; }

  /// Whether a captured part may have branches. If so, this is called before finish_planning(): operations on
  /// branch 1 take at most so many bytes of workspace, those on branches behind it none. `measures`: each
  /// part has branches only if that is faster.
  virtual bool reserve_branches(std::int64_t /*workspace*/, bool /*measures*/) { return false; }
  /// NetworkBranches::times.
  virtual std::vector<std::string> branch_times() const { return {}; }
  /// Whether all runs of the part, with their indices, took less time together with branches, when they were
  /// measured; without `measures`, whether they can be captured on branches.
  virtual bool prefers_branches(Part) const { return false; }
  /// The stream of the current branch; outside of run_on_branches(), stream().
  virtual StreamView queue() const { return stream(); }
  /// Whether what is queued on stream() now becomes part of a CUDA graph.
  virtual bool is_capturing() const { return false; }
  /// Calls work(task) for each task of the schedule: what it queues runs on the task's branch. To be called
  /// while a graph is captured.
  virtual void run_on_branches(const BranchSchedule&, const std::function<void(std::size_t)>& /*work*/) {
    require(false, "this backend has no branches");
  }
  /// Writes zeros behind the ends of the sequences in `values` (batch, frames, width). Part of a pass.
  virtual void clear_tails(const Pass&, DataType /*type*/, void* /*values*/, std::int64_t /*frames*/,
                           std::int64_t /*width*/) {}
  /// Called once, after all operations have been made. Memory that operations share is allocated here.
  virtual void finish_planning() = 0;
  /// Called before each pass, on the thread that runs it: sets that thread's device or number of threads.
  virtual void prepare_thread() = 0;

  virtual std::unique_ptr<Op> conv(const Binding& binding, const ConvDesc& desc) = 0;
  /// y = W x + b on the last dimension.
  virtual std::unique_ptr<Op> dense(const Binding& binding) = 0;
  virtual std::unique_ptr<Op> batch_norm(const Binding& binding, const BatchNormDesc& desc) = 0;
  virtual std::unique_ptr<Op> activation(const Binding& binding, Activation kind) = 0;
  /// The input times a constant.
  virtual std::unique_ptr<Op> scale(const Binding& binding, double factor) = 0;
  /// The product of the two inputs. Where they are an image (H, W, C) and a gate, (1, 1, C) or (C), the gate
  /// multiplies every pixel. The larger one is the first.
  virtual std::unique_ptr<Op> multiply(const Binding& binding) = 0;
  /// The sum of the inputs.
  virtual std::unique_ptr<Op> add(const Binding& binding) = 0;
  /// Joins the last dimension of the inputs. An input, or its gradient, that lies in its columns of the
  /// output, or of the output's gradient, is not copied.
  virtual std::unique_ptr<Op> concat(const Binding& binding) = 0;
  virtual std::unique_ptr<Op> dropout(const Binding& binding, double probability) = 0;
  virtual std::unique_ptr<Op> lrn(const Binding& binding, const LrnDesc& desc) = 0;
  /// (batch, frames, features) to (batch, frames, state). Parameters are in PyTorch's order. A sequence that
  /// continues starts from the state in `carried`, another one from zeros. Forward leaves there the state
  /// after the last frame, or zeros where the sequence ended before it.
  virtual std::unique_ptr<Op> lstm(const Binding& binding, const LstmDesc& desc) = 0;
  /// Token numbers (batch, tokens) to rows of a table (batch, tokens, dimension).
  virtual std::unique_ptr<Op> embedding(const Binding& binding) = 0;
  /// Over the last dimension. Parameters are weight and, if there is one, bias.
  virtual std::unique_ptr<Op> layer_norm(const Binding& binding, const LayerNormDesc& desc) = 0;
  /// Over each sample's groups of neighbouring channels. Parameters are weight and bias.
  virtual std::unique_ptr<Op> group_norm(const Binding& binding, const GroupNormDesc& desc) = 0;
  /// (batch, frames, features) each: queries, keys and values, or one input with the three side by side. Head
  /// h has the features from h w to (h + 1) w - 1, w = features / heads. Of each head, row t of the output is
  /// the sum over frames j of p[t, j] value[j], p[t] = softmax of query[t] . key[j] / sqrt(w). Frames behind
  /// a sequence's end do not count, nor do those behind t if it is causal. Outputs and gradients behind the
  /// end are 0. In training weight p[t, j] of head h is dropped by the draw of value j of row h frames + t
  /// (nn/dropout.h); rows begin with a block of their own.
  virtual std::unique_ptr<Op> attention(const Binding& binding, const AttentionDesc& desc) = 0;
  /// The input plus the first rows of the parameter, (frames or more, features), for each sample.
  virtual std::unique_ptr<Op> position(const Binding& binding) = 0;
  /// (batch, frames, features) to (batch, 1 + frames, features): the parameter is each sample's first frame.
  virtual std::unique_ptr<Op> class_token(const Binding& binding) = 0;
  /// (batch, frames, features) to (batch, features): frame `index`.
  virtual std::unique_ptr<Op> select_frame(const Binding& binding, std::int64_t index) = 0;
  virtual std::unique_ptr<Op> pool(const Binding& binding, const PoolDesc& desc) = 0;
  /// (N, H, W, C) to (N, C, H, W), so that a flattened image has PyTorch's order of features.
  virtual std::unique_ptr<Op> channels_first(const Binding& binding) = 0;
  /// into = the sum of `terms`, and 0 where `mask` is not positive. `mask` may be null. `into` may be one of
  /// the terms. The work is done by backward(), because the planner needs such sums there alone.
  virtual std::unique_ptr<Op> sum(DataType type, void* into, std::vector<const void*> terms, const void* mask,
                                  std::int64_t elements) = 0;
  virtual std::unique_ptr<LossOp> softmax_cross_entropy(DataType type, const void* logits, void* gradient,
                                                        const LossDesc& desc) = 0;
};

/// Why this machine's processor cannot do the arithmetic; nothing if it can.
std::optional<std::string> cpu_unsupported(Compute compute);
/// The backend that uses oneDNN and OpenMP. DeviceError if the processor cannot do the arithmetic.
std::unique_ptr<Backend> make_cpu_backend(int threads, Compute compute);

}  // namespace lpsgd
