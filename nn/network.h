// A network that runs. It is planned once for a batch size and a device, and then runs step after step
// without allocating memory. Parameters and gradients are views into arenas. Activations are NHWC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/pixels.h"
#include "core/tensor_info.h"
#include "nn/branches.h"
#include "nn/compute.h"
#include "nn/network_spec.h"
#include "nn/plan_search.h"

namespace lpsgd {

class Trace;

/// A tensor that belongs to the model but is not trained: a running statistic of batch normalisation.
struct NamedBuffer {
  std::string name;  // "bn1.running_mean"
  std::vector<std::int64_t> shape;
  std::span<float> values;
  bool frozen = false;  // of a frozen layer: no pass changes it
};

/// Tensors, and the memory that holds each of them at its offset.
struct TensorArena {
  const std::vector<TensorInfo>* tensors = nullptr;
  std::span<float> values = {};
  /// The tensor's own.
  std::span<float> of(const TensorInfo& tensor) const {
    return values.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.elements));
  }
};

/// This rank's part of a global batch, or one of its micro-batches.
struct Samples {
  /// (batch, input shape...); token numbers are floats, too. Empty if the inputs are pixels.
  std::span<const float> inputs = {};
  /// (batch), or (batch, frames) if every frame has class scores; -1: not scored.
  std::span<const std::int32_t> labels = {};
  /// The length of each sequence in frames, from 0 to the network's number of frames. What lies behind the
  /// end is ignored; a sample of length 0 has nothing else. Empty: all sequences have full length.
  std::span<const std::int32_t> lengths = {};
  /// (batch, H, W, C) of NetworkOptions::pixels, in place of `inputs`.
  std::span<const std::uint8_t> pixels = {};
  /// (batch): which part of its image each sample is. Empty: the top left one.
  std::span<const PixelCrop> crops = {};
  /// (batch). 1: the sequence goes on with the state that the sample at the same position had after the last
  /// of the network's frames in the previous pass of the same kind (training or evaluation). That state is
  /// zeros if the sample ended before that frame. No gradient flows back into it. 0: the sequence starts from
  /// zeros. Empty: all start from zeros.
  std::span<const std::int32_t> continues = {};
  /// The gradients are those of the sum of the cross-entropies divided by this. 0: by the number of labels
  /// that are scored, which gives the mean. Where ranks score different numbers of frames, frames of all
  /// ranks / number of ranks makes the mean over ranks the mean over all frames.
  double loss_divisor = 0;
  /// Which of NetworkOptions::micro_batches this is. In training they come in order.
  std::int64_t micro_batch = 0;
  /// If not null, it is recorded behind the work that reads inputs or pixels. They must not change before.
  Event* read = nullptr;
};

/// Sums over the samples since the last take_metrics(), or over their frames if every frame has scores.
struct BatchMetrics {
  double loss = 0;  // sum of the cross-entropies
  std::int64_t top1 = 0, top5 = 0, samples = 0;
};

/// What a pass of an operation takes at least, for the whole batch.
struct OperationCost {
  std::int64_t bytes = 0;  // each tensor that it needs read once, each result written once
  std::int64_t flops = 0;  // as Layer::flops(); of backward, those of the gradients of weights and inputs
};

/// The time of one operation, summed since the last take_times(). If the backward of a convolution runs as
/// part of the batch normalisation behind it (docs/add-a-layer.md), its time and cost are counted there.
struct OperationTime {
  std::string name;                  // of its layer and the last one fused into it: "bn1+act1"
  double forward = 0, backward = 0;  // seconds
  std::string kind;                  // of its layer
  OperationCost forward_cost, backward_cost;
  std::int64_t elements = 0;  // of the output
};

/// What graphs of a network's passes have of branches.
struct NetworkBranches {
  std::size_t forward = 1, backward = 1;  // so many, if a pass has them
  /// With Branches::measured, of each pass that was measured: "backward: 1.203 ms, on branches 0.917 ms".
  std::vector<std::string> times = {};
};

/// Inputs that arrive as bytes, which the network crops, mirrors and scales on its device.
struct PixelOptions {
  ImageShape stored;  // of the images in a batch
  Normalization norm;
};

struct NetworkOptions {
  std::int64_t batch = 1;  // samples of a pass: this rank's part of the global batch, or of a micro-batch
  std::int64_t first = 0;  // position of the rank's first sample in the global batch, for dropout
  /// Gradient accumulation: the gradients of a step are the mean of those of so many passes, each of `batch`
  /// samples. With more than one they are added up in an arena of their own.
  std::int64_t micro_batches = 1;
  std::uint32_t seed = 1;  // of initial weights and dropout
  int threads = 1;         // of this rank, for the CPU backend
  Compute compute = Compute::fp32;
  bool inference_only = false;  // no gradients, no backward
  Recompute recompute = Recompute::none;
  double label_smoothing = 0;  // of the loss in training, from 0 to 1
  Device device = {};
  /// On a GPU: use only algorithms that add in a fixed order, and choose them without measuring.
  bool deterministic = false;
  /// On a GPU: the seconds that measuring algorithms may take before the first step.
  double search_seconds = default_search_seconds;
  /// On a GPU: capture each pass as a CUDA graph in its third run, and launch the graph from then on.
  bool cuda_graphs = true;
  /// On a GPU: whether these graphs have branches, so that operations that do not depend on each other run at
  /// the same time. `measured`: each pass is run both ways several times, and goes on in the faster one.
  Branches branches = Branches::measured;
  /// On a GPU: measure each operation for take_times(). Nothing is captured then, and passes become a little
  /// slower. On the CPU operations are always measured.
  bool time_operations = false;
  std::optional<PixelOptions> pixels = {};  // nothing: inputs are float32
  /// On a GPU: receives a span of each operation's work, on the track "GPU: compute stream". Nothing is
  /// captured then. It outlives the network.
  Trace* trace = nullptr;
};

class Network {
 public:
  /// DeviceError if there is no such device, if it cannot do the arithmetic, or if its memory is too small.
  Network(const NetworkSpec& spec, const NetworkOptions& options);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const std::vector<TensorInfo>& tensors() const;  // those that are trained
  // The arenas hold each tensor at its offset, in memory order (O-H-W-I, out x in). They lie in the memory of
  // the device; copy_values() of core/device.h copies them to the host.
  std::span<float> parameters();
  std::span<float> gradients();
  /// Those that are not trained (NetworkSpec::freeze()), in an arena of their own.
  TensorArena frozen();
  std::vector<NamedBuffer> buffers();  // in order
  /// What training carries from step to step: "lstm1.h" (samples, width) and "lstm1.c" (samples, cell), of
  /// the samples of all micro-batches, in the memory of the device. Evaluation has its own, so that it
  /// changes nothing here.
  std::vector<NamedBuffer> carried_state();
  /// The order in which backward announces the tensors. It is the same on every rank and in every step.
  const std::vector<std::size_t>& announce_order() const;

  /// Batch normalisation uses the batch's statistics and updates the running ones. Dropout draws its mask for
  /// `step`, which counts from the start of the run.
  void forward_train(const Samples& samples, std::int64_t step);
  /// Only the first `valid` samples count in the metrics.
  void forward_eval(const Samples& samples, std::int64_t valid);
  /// Computes the gradients of the loss of the last forward_train(), see Samples::loss_divisor. Behind a
  /// micro-batch that is not the step's last one, they are only added to those before, and `announce` is not
  /// called; behind the last one gradients() become the mean over the micro-batches. Calls announce(tensor)
  /// for each tensor, in announce_order(), as soon as its gradient is final. On a GPU that is when the work
  /// has been queued on announcing_stream().
  void backward(const std::function<void(std::size_t)>& announce);
  /// On a GPU, cuts backward into segments, each launched as one graph: a segment ends behind the layer of
  /// each of `tensors`, and the tensors of a segment are announced behind it. `tensors` are in
  /// announce_order(). In a larger graph backward may be one part that announces at the same places. Error if
  /// there is no such tensor. Another call cuts the next backward anew.
  void announce_behind(std::span<const std::size_t> tensors);
  /// Waits for the device.
  BatchMetrics take_metrics();
  /// The class scores of the last forward, before the softmax: (batch, classes) or (batch, frames, classes).
  /// They are a copy on the host, valid until the next forward. Waits for the device.
  std::span<const float> logits() const;
  /// The queue that passes run on.
  StreamView stream() const;
  /// Within `announce` of backward: the gradient is final once the work queued so far on this queue is done.
  /// Otherwise stream(). If a larger graph is being captured, they may differ.
  StreamView announcing_stream() const;
  /// The algorithms that the libraries use, one line each. Empty if there was no choice.
  std::vector<std::string> choices() const;
  /// How many passes and segments are captured as CUDA graphs.
  std::size_t captured() const;
  /// Whether all of backward is captured, so that it may be part of a larger graph (core/capture.h).
  bool is_backward_captured() const;
  NetworkBranches branches() const;
  /// How many steps it takes until it is settled which passes are captured, and which have branches.
  int unsettled_steps() const;
  std::vector<OperationTime> take_times();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
