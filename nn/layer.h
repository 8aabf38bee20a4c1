// The description of a layer: its options, the shapes it accepts, its parameters, and the operation that runs
// it. nn/layers/ has a file for each kind, nn/layers.cc the table of kinds. Nothing here depends on a device.
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
#include "nn/activation.h"
#include "nn/shape.h"

namespace lpsgd {

class Backend;
class Op;
class OperatorWriter;
struct Binding;

/// Inputs or options that a layer does not accept. The graph adds the file, the line and the layer's name.
class LayerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How a parameter is initialized: every value is `scale`; normal with standard deviation `scale`; uniform
/// between -scale and scale; or in row t, columns 2 i and 2 i + 1, the sine and cosine of t / 10000^(2 i /
/// columns) (Vaswani and others 2017, section 3.5).
struct Init {
  enum class Kind : std::uint8_t { constant, normal, uniform, sines } kind = Kind::constant;
  double scale = 0;
};
/// Normal with standard deviation sqrt(2 / fan): He et al. 2015.
Init he_normal(std::int64_t fan);
/// Uniform in +-1/sqrt(fan): PyTorch's default for dense weights and biases.
Init uniform_over(std::int64_t fan);

/// A trainable tensor of a layer.
struct ParameterSpec {
  const char* suffix;  // "weight", "bias"
  TensorKind kind;
  Shape shape;  // in PyTorch's order
  Init init;
};

/// The options `init_deviation`, `init_range` and `init_bias`, for layers that have them.
struct InitOptions {
  double deviation = 0;  // of normal weights; 0: as the layer does it
  double range = 0;      // uniform weights and biases are between -range and range; 0: as the layer does it
  std::optional<double> bias;  // the value of every bias; nothing: as the layer does it
  void fields(config::Visitor& visitor);
  /// Throws LayerError if both deviation and range are given.
  void check() const;
  Init weights(Init layer_default) const;
  Init biases(Init layer_default) const;
};

/// A tensor of a layer that belongs to the model but is not trained.
struct BufferSpec {
  const char* suffix;  // "running_mean"
  Shape shape;
  float initial;
};

/// What a layer may do in the pass that writes its output: add another tensor, then apply a ReLU.
struct Epilogue {
  bool residual = false, relu = false;
};

/// What a layer over sequences keeps of each sample from one pass to the next.
struct CarriedSpec {
  const char* suffix;  // "h"
  Shape shape;         // of one sample
};

class Layer {
 public:
  virtual ~Layer() = default;
  /// Declares the options.
  virtual void fields(config::Visitor&) {}
  /// Checks the shapes of the inputs and returns that of the output. Called once, before all functions below.
  /// Throws LayerError.
  virtual Shape infer(std::span<const Shape> inputs) = 0;
  virtual std::vector<ParameterSpec> parameters() const { return {}; }
  /// The layer whose first parameter is this one's first, too, by its name in the network file; "none": no
  /// layer's (weight tying: Press and Wolf 2017, Inan and others 2017).
  virtual std::string weight_of() const { return "none"; }
  virtual bool is_trained() const { return true; }  // its parameters; if not, the layer is frozen
  /// Whether backward adds to the gradient of the first parameter if ParameterView::adds, so that another
  /// layer may have that parameter, too.
  virtual bool can_share_weight() const { return false; }
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  virtual std::vector<CarriedSpec> carried() const { return {}; }
  /// Of forward for one sample; a multiply-add counts as 2. Pooling, activations and layers that only move
  /// values count as 0.
  virtual std::int64_t flops() const { return 0; }
  /// Of all inputs' gradients together, likewise.
  virtual std::int64_t input_gradient_flops() const { return flops(); }

  /// Whether the output has other frames than the input, so that the lengths of sequences do not hold for it.
  virtual bool changes_frames() const { return false; }

  /// What forward keeps for backward beside the output, for one sample: where each maximum
  /// was, or which values were dropped.
  virtual std::int64_t kept_bytes() const { return 0; }

  // What the planner asks, to share memory and to fuse passes. The defaults are right for every layer.
  virtual bool is_view() const { return false; }  // the output is the input with another shape
  virtual bool is_relu() const { return false; }
  virtual bool is_sum() const { return false; }             // each input's gradient is the output's gradient
  virtual bool hands_gradient_on() const { return false; }  // the only input's gradient is the output's
  virtual bool is_concat() const { return false; }          // the inputs' last dimensions are joined
  /// The output may be columns of a wider array (Binding::output_stride), if no residual is fused.
  virtual bool can_write_columns() const { return false; }
  virtual bool reads_tokens() const { return false; }  // the input holds token numbers, which stay float32
  virtual bool can_run_in_place() const { return false; }  // the output may overwrite the input
  virtual bool backward_reads_input() const { return true; }
  virtual bool backward_reads_output() const { return false; }
  virtual bool can_fuse(Epilogue) const { return false; }
  // Backward takes any number of output gradients, and may write the input's over one of them.
  virtual bool sums_gradients() const { return false; }
  virtual bool reads_gradients_twice() const { return false; }  // so their sum is kept (Binding::masked)
  /// Backward computes a fused ReLU's mask from the input, if the output has one gradient and no residual is
  /// fused.
  virtual bool can_mask_by_input() const { return false; }
  virtual bool can_recompute() const { return false; }  // Op::recompute(); backward_reads_input() is true
  // Backward can hand over the gradient of its input in parts; backward can accept that of its output so.
  virtual bool emits_gradient_rows() const { return false; }
  virtual bool accepts_gradient_rows() const { return false; }

  /// The operation that runs the layer on this memory.
  virtual std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const = 0;

  /// The operators of ONNX that compute the layer's output in evaluation.
  virtual void write_operators(OperatorWriter& out) const = 0;

 protected:
  /// The only input. Throws LayerError if there are several.
  static const Shape& single(std::span<const Shape> inputs);
  /// The only input, which is an image (H, W, C). Throws LayerError if it is not.
  static const Shape& image(std::span<const Shape> inputs);
  /// The only input, which is no sequence: the statistics of a `kind` would count what lies behind a
  /// sequence's end. Throws LayerError.
  static const Shape& without_frames(std::span<const Shape> inputs, const char* kind);
  /// The only input, which is a sequence (frames, features). Throws LayerError if it is not.
  static const Shape& sequence(std::span<const Shape> inputs);
};

/// A kind of layer: its word in network files, its meaning, and its factory.
struct LayerKind {
  const char* word;
  const char* help;
  std::unique_ptr<Layer> (*make)();
};

/// All kinds of layers.
std::span<const LayerKind> layer_kinds();

/// The largest window, stride, padding or number of channels that an option may ask for.
constexpr double max_option = 1 << 20;

/// Declares an option that is an integer or [height, width].
void size_field(config::Visitor& visitor, const char* key, Size2& size, const char* help,
                config::Range range);

// The factories of the kinds, from the files in nn/layers/.
std::unique_ptr<Layer> make_conv_layer();
std::unique_ptr<Layer> make_dense_layer();
std::unique_ptr<Layer> make_batch_norm_layer();
std::unique_ptr<Layer> make_activation_layer(Activation kind);
std::unique_ptr<Layer> make_dropout_layer();
std::unique_ptr<Layer> make_lrn_layer();
std::unique_ptr<Layer> make_scale_layer();
std::unique_ptr<Layer> make_add_layer();
std::unique_ptr<Layer> make_multiply_layer();
std::unique_ptr<Layer> make_embedding_layer();
std::unique_ptr<Layer> make_lstm_layer();
std::unique_ptr<Layer> make_concat_layer();
std::unique_ptr<Layer> make_max_pool_layer();
std::unique_ptr<Layer> make_average_pool_layer();
std::unique_ptr<Layer> make_flatten_layer();
std::unique_ptr<Layer> make_layer_norm_layer();
std::unique_ptr<Layer> make_group_norm_layer();
std::unique_ptr<Layer> make_attention_layer();
std::unique_ptr<Layer> make_to_sequence_layer();
std::unique_ptr<Layer> make_position_layer();
std::unique_ptr<Layer> make_class_token_layer();
std::unique_ptr<Layer> make_select_frame_layer();
std::unique_ptr<Layer> make_mean_frames_layer();

}  // namespace lpsgd
