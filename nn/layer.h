// A layer's description: its options, the shapes it accepts, its parameters, and the operation that runs it.
// One file a kind under nn/layers/; nn/layers.cc holds the table of kinds. Nothing here knows a device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"
#include "nn/shape.h"

namespace lpsgd {

class Backend;
class Op;
struct Binding;

/// What does not fit in a layer; the graph adds the file, the line and the layer's name.
class Misfit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How a parameter starts (docs/networks.md): all at `scale`, normal with deviation `scale`, or uniform in
/// +-`scale`.
struct Init {
  enum class Kind : std::uint8_t { constant, normal, uniform } kind = Kind::constant;
  double scale = 0;
};
/// Normal with deviation sqrt(2 / fan): He et al. 2015.
Init he_normal(std::int64_t fan);
/// Uniform in +-1/sqrt(fan): PyTorch's default for dense weights and biases.
Init uniform_over(std::int64_t fan);

/// A trainable tensor that a layer asks for.
struct ParameterSpec {
  const char* suffix;  // "weight", "bias"
  TensorKind kind;
  Shape shape;  // PyTorch's order
  Init init;
};

/// The options of layers that let a file say how their weights and biases start.
struct InitOptions {
  double deviation = 0;        // of weights; 0: the layer's own rule
  std::optional<double> bias;  // every bias; nothing: the layer's own rule
  void fields(config::Visitor& visitor);
  Init weights(Init own) const;
  Init biases(Init own) const;
};

/// A tensor that is kept with the model but not trained.
struct BufferSpec {
  const char* suffix;  // "running_mean"
  Shape shape;
  float initial;
};

/// What may be done in a layer's own pass over its output: first a sum with another tensor, then a ReLU.
struct Epilogue {
  bool residual = false, relu = false;
};

class Layer {
 public:
  virtual ~Layer() = default;
  /// Declares the options.
  virtual void fields(config::Visitor&) {}
  /// Checks the inputs' shapes and returns the output's; called once, before all below. Throws Misfit.
  virtual Shape infer(std::span<const Shape> inputs) = 0;
  virtual std::vector<ParameterSpec> parameters() const { return {}; }
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  /// Forward, one sample, multiply-add = 2; 0 for what only moves or compares values, pooling and
  /// activations.
  virtual std::int64_t flops() const { return 0; }

  // What the planner needs to know to share memory and fuse passes.
  virtual bool is_view() const { return false; }  // the output is the input under another shape
  virtual bool is_relu() const { return false; }
  virtual bool reads_tokens() const { return false; }  // whole numbers, which stay float32
  virtual bool is_sum() const { return false; }        // an input's gradient is the output's gradient
  virtual bool in_place() const { return false; }      // the output may lie where the input lay
  virtual bool backward_reads_input() const { return true; }
  virtual bool backward_reads_output() const { return false; }
  virtual bool fuses(Epilogue) const { return false; }
  virtual bool sums_gradients() const { return false; }  // backward takes any number of output gradients
  virtual bool gives_rows() const { return false; }  // backward can hand the input's gradient over in parts,
  virtual bool takes_rows() const { return false; }  // ... and take its output's so
  virtual std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const = 0;

 protected:
  /// Throws Misfit unless there is one input of rank 3: (H, W, C).
  static const Shape& image(std::span<const Shape> inputs);
  static const Shape& single(std::span<const Shape> inputs);
};

/// A kind of layer: its word in network files and its factory.
struct LayerKind {
  const char* word;
  const char* help;
  std::unique_ptr<Layer> (*make)();
};

/// Every kind there is.
std::span<const LayerKind> layer_kinds();

/// No window, step, border or number of channels is larger.
constexpr double largest_option = 1 << 20;

/// Declares a Size2 option: an integer, or [height, width].
void size_field(config::Visitor& visitor, const char* key, Size2& size, const char* help,
                config::Range range);

// The kinds' factories, one per file.
std::unique_ptr<Layer> make_conv_layer();
std::unique_ptr<Layer> make_dense_layer();
std::unique_ptr<Layer> make_batch_norm_layer();
std::unique_ptr<Layer> make_relu_layer();
std::unique_ptr<Layer> make_sigmoid_layer();
std::unique_ptr<Layer> make_tanh_layer();
std::unique_ptr<Layer> make_dropout_layer();
std::unique_ptr<Layer> make_lrn_layer();
std::unique_ptr<Layer> make_add_layer();
std::unique_ptr<Layer> make_embedding_layer();
std::unique_ptr<Layer> make_lstm_layer();
std::unique_ptr<Layer> make_concat_layer();
std::unique_ptr<Layer> make_max_pool_layer();
std::unique_ptr<Layer> make_average_pool_layer();
std::unique_ptr<Layer> make_flatten_layer();

}  // namespace lpsgd
