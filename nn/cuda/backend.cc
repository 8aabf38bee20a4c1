// The CUDA backend: cuDNN for convolutions, cuBLASLt for matrix products, and kernels of our own for the
// rest. Everything is queued on one stream, and on branches of graphs that begin and end there. No pass
// allocates memory or waits for the device, but for the one that chooses between graphs (captured_pass.h).
#include "nn/cuda/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "core/capture.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "nn/cuda/captured_pass.h"
#include "nn/cuda/context.h"
#include "nn/cuda/feed.h"

namespace lpsgd {
namespace cuda {
namespace {

const char* name_of(Backend::Part part) {
  switch (part) {
    case Backend::Part::train_forward:
      return "forward";
    case Backend::Part::evaluate:
      return "forward in evaluation";
    case Backend::Part::micro_backward:
      return "backward of a micro-batch";
    case Backend::Part::backward:
      return "backward";
    case Backend::Part::backward_segment:
      return "a part of backward";
    case Backend::Part::count:
      break;
  }
  return "a pass";
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(Device device, Compute compute, bool deterministic, double search_seconds)
      : context_(device, compute, deterministic, search_seconds), inputs_(context_) {}

  std::vector<std::string> choices() const override { return context_.choices; }
  std::vector<std::string> branch_times() const override {
    std::vector<std::string> out;
    for (std::size_t part = 0; part < passes_.size(); ++part)
      for (const CapturedPass& pass : passes_[part])
        if (const auto& seconds = pass.comparison())
          out.push_back(fmt::format("{}: {:.3f} ms, on branches {:.3f} ms", name_of(static_cast<Part>(part)),
                                    1e3 * seconds->plain, 1e3 * seconds->branching));
    return out;
  }
  bool prefers_branches(Part part) const override {
    const std::deque<CapturedPass>& passes = passes_[static_cast<std::size_t>(part)];
    if (!std::ranges::all_of(passes, &CapturedPass::can_branch)) return false;
    CapturedPass::Comparison sum;
    for (const CapturedPass& pass : passes) {
      const CapturedPass::Comparison own = pass.comparison().value_or(CapturedPass::Comparison{});
      sum.plain += own.plain;
      sum.branching += own.branching;
    }
    return !measures_branches_ || sum.prefers_branches();
  }
  StreamView queue() const override { return context_.queue(); }
  bool is_capturing() const override { return lpsgd::is_capturing(context_.stream); }
  std::size_t captured() const override {
    std::size_t count = 0;
    for (const std::deque<CapturedPass>& part : passes_)
      count += static_cast<std::size_t>(std::ranges::count_if(part, &CapturedPass::is_captured));
    return count;
  }
  bool is_captured(Part part) const override {
    const std::deque<CapturedPass>& passes = passes_[static_cast<std::size_t>(part)];
    return !passes.empty() && std::ranges::all_of(passes, &CapturedPass::is_captured);
  }
  bool reserve_branches(std::int64_t workspace, bool measures) override {
    context_.reserve_branches(workspace);
    measures_branches_ = measures;
    return true;
  }
  void run_on_branches(const BranchSchedule& schedule,
                       const std::function<void(std::size_t)>& work) override {
    context_.run_on_branches(schedule, work);
  }
  StreamView stream() const override { return context_.stream; }
  void* allocate(std::int64_t bytes) override { return context_.allocate(bytes); }
  void parameters(std::span<const float> arena) override { context_.parameters(arena); }
  void finish_planning() override { context_.finish_planning(); }
  void prepare_thread() override { set_device(context_.device.index); }

  std::unique_ptr<PixelInput> pixel_input(const PixelDesc& desc) override {
    return make_pixel_input(context_, inputs_, desc);
  }
  void upload(void* to, DataType type, std::span<const float> from, Event* read) override {
    inputs_.upload(to, type, from, read);
  }
  void download(std::span<float> to, DataType type, const void* from) override {
    if (type != DataType::f32) {
      const DeviceBuffer<float> wide(context_.device, to.size());
      check(launch_convert(from, type, const_cast<float*>(wide.data()), DataType::f32,
                           static_cast<std::int64_t>(to.size()), context_.handle()));
      copy_values(to, wide.view(), context_.stream);
      context_.stream.synchronize();
      return;
    }
    copy_bytes(to.data(), from, to.size_bytes(), context_.stream);
    context_.stream.synchronize();
  }
  void begin(const Pass& pass, std::span<const std::int32_t> labels) override {
    feed_->upload(pass, labels);
    context_.refresh();
  }
  void clear_tails(const Pass&, DataType type, void* values, std::int64_t frames,
                   std::int64_t width) override {
    check(launch_clear_tails(type, values, {feed_->batch(), frames}, width, context_.lengths,
                             context_.handle()));
  }
  void run(Part part, std::size_t index, const std::function<void()>& work,
           const std::function<void()>& on_branches) override {
    std::deque<CapturedPass>& passes = passes_[static_cast<std::size_t>(part)];
    while (passes.size() <= index) passes.emplace_back();
    passes[index].run(context_.stream, name_of(part), work, on_branches, measures_branches_);
  }
  void forget(Part part) override {
    std::deque<CapturedPass>& passes = passes_[static_cast<std::size_t>(part)];
    if (!passes.empty()) context_.stream.synchronize();  // it may be launching them
    passes.clear();
  }

  std::unique_ptr<Op> conv(const Binding& b, const ConvDesc& desc) override {
    return make_conv(context_, b, desc);
  }
  std::unique_ptr<Op> dense(const Binding& b) override { return make_dense(context_, b); }
  std::unique_ptr<Op> batch_norm(const Binding& b, const BatchNormDesc& desc) override {
    return make_batch_norm(context_, b, desc);
  }
  std::unique_ptr<Op> activation(const Binding& b, Activation kind) override {
    return make_activation(context_, b, kind);
  }
  std::unique_ptr<Op> scale(const Binding& b, double factor) override {
    return make_scale(context_, b, factor);
  }
  std::unique_ptr<Op> multiply(const Binding& b) override { return make_multiply(context_, b); }
  std::unique_ptr<Op> add(const Binding& b) override { return make_add(context_, b); }
  std::unique_ptr<Op> concat(const Binding& b) override { return make_concat(context_, b); }
  std::unique_ptr<Op> dropout(const Binding& b, double probability) override {
    return make_dropout(context_, b, probability);
  }
  std::unique_ptr<Op> lrn(const Binding& b, const LrnDesc& desc) override {
    return make_lrn(context_, b, desc);
  }
  std::unique_ptr<Op> lstm(const Binding& b, const LstmDesc& desc) override {
    return make_lstm(context_, b, desc);
  }
  std::unique_ptr<Op> embedding(const Binding& b) override { return make_embedding(context_, b); }
  std::unique_ptr<Op> layer_norm(const Binding& b, const LayerNormDesc& desc) override {
    return make_layer_norm(context_, b, desc);
  }
  std::unique_ptr<Op> group_norm(const Binding& b, const GroupNormDesc& desc) override {
    return make_group_norm(context_, b, desc);
  }
  std::unique_ptr<Op> attention(const Binding& b, const AttentionDesc& desc) override {
    return make_attention(context_, b, desc);
  }
  std::unique_ptr<Op> position(const Binding& b) override { return make_position(context_, b); }
  std::unique_ptr<Op> class_token(const Binding& b) override { return make_class_token(context_, b); }
  std::unique_ptr<Op> select_frame(const Binding& b, std::int64_t index) override {
    return make_select_frame(context_, b, index);
  }
  std::unique_ptr<Op> pool(const Binding& b, const PoolDesc& desc) override {
    return make_pool(context_, b, desc);
  }
  std::unique_ptr<Op> channels_first(const Binding& b) override { return make_channels_first(context_, b); }
  std::unique_ptr<Op> sum(DataType type, void* into, std::vector<const void*> terms, const void* mask,
                          std::int64_t elements) override {
    return make_sum(context_, type, into, terms, mask, elements);
  }
  std::unique_ptr<LossOp> softmax_cross_entropy(DataType type, const void* logits, void* gradient,
                                                const LossDesc& desc) override {
    feed_.emplace(context_, desc.batch, desc.frames, desc.classes);
    return make_loss(context_, type, logits, gradient, desc);
  }

 private:
  Context context_;
  InputFeed inputs_;
  std::optional<PassFeed> feed_;
  std::array<std::deque<CapturedPass>, static_cast<std::size_t>(Part::count)> passes_;
  bool measures_branches_ = false;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(Device device, Compute compute, bool deterministic,
                                           double search_seconds) {
  const ScopedDevice scope(device);
  return std::make_unique<cuda::CudaBackend>(device, compute, deterministic, search_seconds);
}

std::string cudnn_version() {
  const std::size_t v = cudnnGetVersion();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string cublas_version() {
  const std::size_t v = cuda_devices().count > 0 ? cublasLtGetVersion() : CUBLAS_VERSION;
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

}  // namespace lpsgd
