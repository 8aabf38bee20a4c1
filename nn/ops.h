// The operations that a backend implements. Layers are written over these; an operation is planned once, with
// its memory, and then runs step after step without allocating or creating anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/data_type.h"
#include "core/device.h"
#include "core/tensor_info.h"
#include "nn/network.h"
#include "nn/shape.h"

namespace lpsgd {

/// What a pass over the network is about.
struct Pass {
  bool training = false;                  // batch norm uses and records the batch's statistics, dropout drops
  std::uint32_t step = 0;                 // of the run, counted from 0
  std::int64_t valid = 0;                 // samples that count: the first ones
  std::span<const std::int32_t> lengths;  // of each sequence in frames; empty: all are full
};

/// A planned operation. forward() and backward() work on the memory it was planned with.
class Op {
 public:
  virtual ~Op() = default;
  virtual void forward(const Pass& pass) = 0;
  /// Reads the output's gradient(s); writes the inputs' gradients and the parameters'.
  virtual void backward() = 0;
};

/// A trainable tensor's place in the arenas. `gradient` is null for inference.
struct ParameterView {
  const TensorInfo* info = nullptr;
  const float* value = nullptr;
  float* gradient = nullptr;
};

/// An input of an operation, (batch, shape...) in NHWC, of values of `type`; its gradient is of the same.
/// `gradient` is null where none is asked for.
struct InputView {
  Shape shape;
  DataType type = DataType::f32;
  const void* value = nullptr;
  void* gradient = nullptr;
};

/// What an operation's random draws depend on beside the step.
struct RandomPlace {
  std::uint32_t seed = 0, layer = 0;
  std::int64_t first = 0;  // the first sample's position in the global batch
};

/// The memory that an operation is planned with. Device memory for a device backend. Activations and their
/// gradients are stored as `type`, which all of a network's are but the token numbers that an embedding reads
/// (float32); parameters, their gradients and buffers are float32.
struct Binding {
  std::int64_t batch = 1;
  bool training = true;  // backward will be called
  RandomPlace random;
  std::vector<InputView> inputs;
  Shape shape;  // of the output
  DataType type = DataType::f32;
  void* output = nullptr;
  /// The output's gradient is the sum of these: one, unless the layer sums_gradients().
  std::vector<const void*> output_gradients;
  std::vector<ParameterView> parameters;
  std::vector<float*> buffers;
  // The epilogue: output = relu(layer(inputs) + residual). `masked` receives the gradient of the sum, which
  // is also the residual's gradient; it is null where no one needs it (no ReLU, or no residual).
  const void* residual = nullptr;
  bool relu = false;
  void* masked = nullptr;
  /// The operation that wrote the only input, if it ran right before this one, which alone reads it, and both
  /// backwards may run as one: this one's first part by part, the other's on each. Null elsewhere.
  Op* source = nullptr;

  std::int64_t elements() const { return batch * elements_of(shape).value_or(0); }
};

struct ConvDesc {
  Size2 kernel, stride, pad;
  std::int64_t filters = 1, groups = 1;
  bool bias = true;

  /// Each pixel of the output is a product with the same pixel of the input.
  bool is_product() const {
    return kernel == Size2{1, 1} && stride == Size2{1, 1} && pad == Size2{0, 0} && groups == 1;
  }
};

struct LstmDesc {
  std::int64_t cell = 1, projection = 0;
  bool bias = true;
};

struct PoolDesc {
  enum class Kind : std::uint8_t { max, average } kind = Kind::max;
  Size2 kernel, stride, pad;
  bool count_pad = true;  // average: padding counts in the divisor
};

struct BatchNormDesc {
  double eps = 1e-5, momentum = 0.1;
};

enum class Activation : std::uint8_t { relu, sigmoid, tanh };

/// y = x * (k + alpha / size * sum of x^2 over `size` channels around)^-beta.
struct LrnDesc {
  std::int64_t size = 5;
  double alpha = 1e-4, beta = 0.75, k = 1;
};

/// The loss: softmax cross-entropy of logits (batch, frames, classes), the mean over what is scored: each
/// sample's frames within its length. Computed in float32 whatever the logits' type.
class LossOp {
 public:
  struct Sums {
    double loss = 0;
    std::int64_t top1 = 0, top5 = 0, scored = 0;
  };
  virtual ~LossOp() = default;
  /// Adds to the sums over the pass's valid samples. A label's rank is the number of classes with a greater
  /// score, or an equal one and a lower index.
  virtual void forward(const Pass& pass, std::span<const std::int32_t> labels) = 0;
  /// Writes (softmax - onehot) / scored for the labels of the last forward, 0 for what is not scored.
  virtual void backward() = 0;
  /// The sums since the last take(), which a device brings to the host here.
  virtual Sums take() = 0;
};

/// A device: memory and operations. One object serves one network on one rank.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  /// Which of their algorithms libraries run, where there was a choice: a line each.
  virtual std::vector<std::string> choices() const { return {}; }
  /// The queue that operations run on.
  virtual StreamView stream() const { return {}; }
  /// Zeroed memory of the device, aligned to 64 bytes, that lives as long as the backend.
  virtual void* allocate(std::int64_t bytes) = 0;
  /// Copies values from the host to memory of allocate(), as `type`, and back.
  virtual void upload(void* to, DataType type, std::span<const float> from) = 0;
  virtual void download(std::span<float> to, DataType type, const void* from) = 0;
  /// The arena of the parameters; called once, before operations are made.
  virtual void parameters(std::span<const float>) {}
  /// Called before a pass: what operations are to read beside their inputs. Error where a label is no class.
  virtual void begin(const Pass&, std::span<const std::int32_t>) {}
  /// Runs a part of a step, which asks for the same operations every time: a device may capture and launch
  /// it. Backward may be one part, or run number `index` of several.
  enum class Part : std::uint8_t { train_forward, evaluate, backward, backward_run, count };
  virtual void run(Part, std::size_t /*index*/, const std::function<void()>& work) { work(); }
  /// Whether run() launches the part, all of its runs if there are several; and how many are launched in all.
  virtual bool is_captured(Part) const { return false; }
  virtual std::size_t captured() const { return 0; }
  /// Called once, when every operation is made: memory that operations share is allocated here.
  virtual void seal() = 0;
  /// Called on the rank's own thread before a pass, with the threads it may use.
  virtual void enter() = 0;

  virtual std::unique_ptr<Op> conv(const Binding& binding, const ConvDesc& desc) = 0;
  virtual std::unique_ptr<Op> dense(const Binding& binding) = 0;
  virtual std::unique_ptr<Op> batch_norm(const Binding& binding, const BatchNormDesc& desc) = 0;
  virtual std::unique_ptr<Op> activation(const Binding& binding, Activation kind) = 0;
  virtual std::unique_ptr<Op> add(const Binding& binding) = 0;
  /// Joins the inputs' last dimension.
  virtual std::unique_ptr<Op> concat(const Binding& binding) = 0;
  virtual std::unique_ptr<Op> dropout(const Binding& binding, double probability) = 0;
  virtual std::unique_ptr<Op> lrn(const Binding& binding, const LrnDesc& desc) = 0;
  /// (batch, frames, features) to (batch, frames, state); parameters in PyTorch's order.
  virtual std::unique_ptr<Op> lstm(const Binding& binding, const LstmDesc& desc) = 0;
  virtual std::unique_ptr<Op> embedding(const Binding& binding) = 0;
  virtual std::unique_ptr<Op> pool(const Binding& binding, const PoolDesc& desc) = 0;
  /// (N, H, W, C) to (N, C, H, W), so that a flattened image has PyTorch's order of features.
  virtual std::unique_ptr<Op> channels_first(const Binding& binding) = 0;
  /// into = sum of `terms`, 0 where `mask` is not positive (null: nowhere); `into` may be one of them.
  virtual std::unique_ptr<Op> sum(DataType type, void* into, std::vector<const void*> terms, const void* mask,
                                  std::int64_t elements) = 0;
  virtual std::unique_ptr<LossOp> softmax_cross_entropy(DataType type, const void* logits, void* gradient,
                                                        std::int64_t batch, std::int64_t frames,
                                                        std::int64_t classes) = 0;
};

/// Why this machine's processor cannot do it; nothing where it can.
std::optional<std::string> cpu_unsupported(Compute compute);
/// The backend over oneDNN and OpenMP. DeviceError where the processor cannot do the arithmetic.
std::unique_ptr<Backend> make_cpu_backend(int threads, Compute compute);

}  // namespace lpsgd
