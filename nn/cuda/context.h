// What the operations of the CUDA backend share: the device, its stream and libraries, memory, what a pass
// reads, and the algorithms that have been chosen.
#pragma once

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "nn/cuda/check.h"
#include "nn/cuda/cublas_lt.h"
#include "nn/cuda/cudnn_graph.h"
#include "nn/cuda/kernels.h"
#include "nn/cuda/small_conv_plan.h"
#include "nn/ops.h"
#include "nn/plan_search.h"

namespace lpsgd::cuda {

/// What a plan is made for.
struct ConvForm {
  bool fused = false;  // with bias and ReLU
  Layout layout = Layout::nhwc;
  bool blocks = false;  // of in_blocks() (nn/cuda/space_to_depth.h)
};

/// A convolution's algorithm: a plan of cuDNN's, or our own kernel, which is always fused and writes the
/// weights' gradient in float32.
struct ConvChoice : ConvForm {
  std::shared_ptr<const ConvPlan> plan = {};
  std::optional<SmallConv> own = {};

  explicit operator bool() const { return plan != nullptr || own; }
};

struct ProductChoice {
  cublasLtMatmulAlgo_t algorithm{};
  std::int64_t workspace = 0;  // bytes
};

struct Context {
  /// `search_seconds`: PlanBudget.
  Context(Device device, Compute compute, bool deterministic, double search_seconds);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device device;
  Compute compute;
  bool deterministic;
  int capability_major;  // of the device
  DataType type;         // of activations and of the operands of matrix products
  Stream stream;
  cudnnHandle_t cudnn = nullptr;
  cublasLtHandle_t blas = nullptr;

  /// Zeroed device memory, aligned to 256 bytes, that lives as long as the context. DeviceError.
  void* allocate(std::int64_t bytes);
  template <class T>
  T* array(std::int64_t n) {
    return static_cast<T*>(allocate(n * static_cast<std::int64_t>(sizeof(T))));
  }

  // Memory that operations share. Its contents are valid during the launches of one operation.
  /// The libraries' workspace on the current branch, of at least so many bytes. It moves when it grows, and
  /// when planning is finished: then it has the size that the chosen plans need (keep_workspace), or that of
  /// reserve_branches(). DeviceError: no room.
  void* workspace(std::int64_t bytes);
  /// Whether there is room for a candidate's workspace. If not, that is logged, and `search` leaves it out.
  bool has_workspace(PlanSearch& search, std::int64_t bytes);
  std::size_t workspace_bytes() const;  // of the current branch
  std::int64_t workspace_limit = 0;     // of one plan
  void keep_workspace(std::int64_t bytes) { kept_workspace_ = std::max(kept_workspace_, bytes); }
  /// `n` partial sums of an operation, or one for each part and channel. Launches take here(partials).
  template <class T>
  T* partials(std::int64_t n) {
    return static_cast<T*>(partial_bytes(n * static_cast<std::int64_t>(sizeof(T))));
  }
  template <class T>
  T* partials(const Cut& cut) {
    return partials<T>(std::int64_t{cut.parts} * cut.channels);
  }
  /// For arrays between an operation's launches, at least so many bytes. It moves when it grows, which it
  /// does only while operations are made.
  std::byte* scratch(std::int64_t bytes);
  std::int64_t score_bytes = std::int64_t{32}
                             << 20;    // of the scores, weights and gradients of attention in scratch
  unsigned* counters(std::int64_t n);  // zero between launches, which take here(counters)
  /// What partials() or counters() returned, on the current branch.
  template <class T>
  T* here(T* shared) const {
    return static_cast<T*>(on_this_branch(shared));
  }
  NormState here(NormState state) const;
  /// For two sums over the rows of an array of activations. They are branch 0's.
  RowSums row_sums(std::int64_t rows, std::int64_t channels, int max_pack = 8);

  // What a pass reads on the device (PassFeed), and what it reports.
  const PassState* pass = nullptr;
  const std::int32_t* labels = nullptr;     // negative for a row that does not count
  const std::int32_t* lengths = nullptr;    // of each sample, in frames
  const PixelCrop* crops = nullptr;         // of each sample
  const std::int32_t* continues = nullptr;  // of each sample: 1 if it goes on with the last state
  float* bad_token = nullptr;               // a token number that is out of range; NaN: none

  /// Sets the arena of the parameters. For bf16 there is a copy of it in that type, which refresh() updates.
  void parameters(std::span<const float> arena);
  void refresh();
  /// The address from which matrix products read a parameter: in the copy, or in the arena.
  const void* operand(const float* parameter) const;

  std::vector<std::string> choices;  // descriptions of those below, in the order of choice
  std::map<std::vector<std::int64_t>, ConvChoice> conv_choices;
  std::map<std::vector<std::int64_t>, ProductChoice> product_choices;
  std::map<std::string, bool> joined;  // what convolutions do for the norms before them (nn/cuda/conv_norm.h)

  cudaStream_t handle() const { return queue().handle(); }
  /// The stream of the current branch.
  StreamView queue() const { return branch_ == 0 ? stream.view() : branches_[branch_ - 1].view(); }

  /// Backend::reserve_branches() and Backend::run_on_branches().
  void reserve_branches(std::int64_t workspace);
  void run_on_branches(const BranchSchedule& schedule, const std::function<void(std::size_t)>& work);
  std::size_t branch() const { return branch_; }

  /// A search for one operation's algorithm, and the seconds that a run of a candidate takes on the stream.
  PlanSearch search() const { return plan_budget_.search(); }
  /// Measures a candidate, named for the log. Whether it is the fastest so far, and accept(), if there is
  /// one, agrees (PlanSearch::measure); false also if one of them throws DeviceError.
  bool measure(PlanSearch& search, const std::string& name, const std::function<void()>& run,
               const std::function<bool()>& accept = {});
  PlanCache plan_cache;  // not used if `deterministic`
  /// All operations have been made.
  void finish_planning();

 private:
  void* partial_bytes(std::int64_t bytes);
  void grow(DeviceMemory& memory, std::int64_t bytes);
  void enter_branch(std::size_t branch);
  void* on_this_branch(void* shared) const;

  PlanBudget plan_budget_;
  bool loaded_ = false;  // libraries have run something
  DeviceMemory workspace_, scratch_;
  std::int64_t kept_workspace_ = 0;
  bool planned_ = false;
  std::vector<DeviceMemory> memory_;
  std::size_t branch_ = 0;         // the current one
  std::vector<Stream> branches_;   // the others than the first
  std::deque<Event> branch_ends_;  // of tasks, by their numbers, and one more
  DeviceMemory side_workspace_;    // of branch 1
  std::int64_t side_workspace_bytes_ = 0;
  std::byte *shared_ = nullptr, *side_shared_ = nullptr;  // partials and counters: of branch 0; of the others
  std::byte* chunk_ = nullptr;
  std::int64_t chunk_left_ = 0;
  std::span<const float> parameters_;
  void* bf16_parameters_ = nullptr;  // their copy
};

/// An operation that uses no memory but its own.
class OwnMemoryOp : public Op {
 public:
  std::optional<Workspaces> workspaces() const override { return Workspaces{}; }
};

/// An operation that may take the statistics of what it writes, for a batch norm that reads it.
class StatisticsSource {
 public:
  virtual ~StatisticsSource() = default;
  /// Whether forward, in training, does from now on what launch_norm_statistics() would: for values of this
  /// many rows and channels. If so, another batch norm cannot have the same. state.partials and
  /// state.finished are not used.
  virtual bool take_statistics(const NormState& state, std::int64_t rows, std::int64_t channels) = 0;
};

/// A batch norm, parts of whose work the operation that reads its output may do.
class NormSource {
 public:
  virtual ~NormSource() = default;
  /// For the operation that reads the output and writes `gradient`. No x: it is not the only one, or the
  /// output is more than relu((x - mean) * scale + bias).
  virtual NormInput input_for(const void* gradient) const = 0;
  // What the parts are when it does them itself: launches on the context's stream.
  virtual void normalize() = 0;
  virtual void gradient_sums() = 0;
  /// From now on the reader computes the output from its input as it loads it, in every pass.
  virtual void leave_output() = 0;
  /// The arrays for launch_norm_gradient_sums().
  virtual NormState sums_state() const = 0;
  /// From now on the reader does what gradient_sums() would, when it has written the output's gradient.
  virtual void leave_sums() = 0;
};

/// The pointers as a launch takes them. Error if there are more than it can take.
Terms terms_of(const std::vector<const void*>& pointers);

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc);
std::unique_ptr<Op> make_dense(Context& context, const Binding& binding);
std::unique_ptr<Op> make_batch_norm(Context& context, const Binding& binding, const BatchNormDesc& desc);
std::unique_ptr<Op> make_activation(Context& context, const Binding& binding, Activation kind);
std::unique_ptr<Op> make_scale(Context& context, const Binding& binding, double factor);
std::unique_ptr<Op> make_multiply(Context& context, const Binding& binding);
std::unique_ptr<Op> make_add(Context& context, const Binding& binding);
std::unique_ptr<Op> make_concat(Context& context, const Binding& binding);
std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability);
std::unique_ptr<Op> make_lrn(Context& context, const Binding& binding, const LrnDesc& desc);
std::unique_ptr<Op> make_lstm(Context& context, const Binding& binding, const LstmDesc& desc);
/// An LSTM by cuDNN, or null if cuDNN's cannot be used for this layer.
std::unique_ptr<Op> make_cudnn_lstm(Context& context, const Binding& binding, const LstmDesc& desc);
std::unique_ptr<Op> make_embedding(Context& context, const Binding& binding);
std::unique_ptr<Op> make_layer_norm(Context& context, const Binding& binding, const LayerNormDesc& desc);
std::unique_ptr<Op> make_group_norm(Context& context, const Binding& binding, const GroupNormDesc& desc);
std::unique_ptr<Op> make_attention(Context& context, const Binding& binding, const AttentionDesc& desc);
std::unique_ptr<Op> make_position(Context& context, const Binding& binding);
std::unique_ptr<Op> make_class_token(Context& context, const Binding& binding);
std::unique_ptr<Op> make_select_frame(Context& context, const Binding& binding, std::int64_t index);
std::unique_ptr<Op> make_pool(Context& context, const Binding& binding, const PoolDesc& desc);
std::unique_ptr<Op> make_channels_first(Context& context, const Binding& binding);
std::unique_ptr<Op> make_sum(Context& context, DataType type, void* into,
                             const std::vector<const void*>& terms, const void* mask, std::int64_t elements);
std::unique_ptr<LossOp> make_loss(Context& context, DataType type, const void* logits, void* gradient,
                                  const LossDesc& desc);

}  // namespace lpsgd::cuda
