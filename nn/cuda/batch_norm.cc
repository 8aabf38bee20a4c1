// Batch normalisation: the operation that launches the kernels of batch_norm.cu.
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

/// The channels of the output that a thread may take at once.
int most_channels(const Binding& b) {
  for (const int pack : {8, 4})
    if (takes_packs(pack, size_of(b.type), b.output, b.row_stride())) return pack;
  return 1;
}

class BatchNormOp final : public Op, public NormSource {
 public:
  BatchNormOp(Context& context, const Binding& b, const BatchNormDesc& desc) : context_(context), b_(b) {
    const std::int64_t channels = b.shape.back();
    cut_ = cut_rows(b.type, b.elements() / channels, channels, most_channels(b));
    state_.weight = b.parameters[0].value;
    state_.bias = b.parameters[1].value;
    state_.weight_gradient = b.parameters[0].gradient;
    state_.bias_gradient = b.parameters[1].gradient;
    state_.running_mean = b.buffers[0];
    state_.running_variance = b.buffers[1];
    for (float** array : {&state_.mean, &state_.scale, &state_.gradient_mean, &state_.slope})
      *array = context.array<float>(channels);
    state_.inverse = context.array<double>(channels);
    state_.partials = context.partials<double2>(cut_);
    state_.finished = context.counters(cut_.tiles);
    state_.eps = desc.eps;
    state_.momentum = desc.momentum;
    if (!b.training) return;
    auto* const source = dynamic_cast<StatisticsSource*>(b.input_source);
    has_statistics_ = source != nullptr && source->take_statistics(state_, cut_.rows, channels);
    gradient_.gradients = terms_of(b.output_gradients);
    gradient_.stride = b.row_stride();
    gradient_.x = b.inputs[0].value;
    gradient_.y = b.output;
    gradient_.masked = b.masked;
    gradient_.relu = b.relu;
    gradient_.dx = b.inputs[0].gradient;
  }

  NormInput input_for(const void* gradient) const override {
    const bool is_only_reader =
        b_.has_one_reader && b_.output_gradients.size() == 1 && b_.output_gradients[0] == gradient;
    const bool is_plain = b_.residual == nullptr && b_.masked == nullptr && b_.output_stride == 0;
    if (!b_.training || b_.type != DataType::bf16 || !is_only_reader || !is_plain) return {};
    return {static_cast<const Bf16*>(b_.inputs[0].value), state_.mean, state_.scale, state_.bias, b_.relu};
  }
  void normalize() override {
    check(launch_normalize(b_.type, b_.inputs[0].value, b_.residual, b_.output, b_.row_stride(), b_.relu,
                           cut_, state(), context_.handle()));
  }
  void gradient_sums() override {
    check(launch_norm_gradient_sums(b_.type, gradient_, cut_, state(), context_.handle()));
  }
  void leave_output() override { leaves_output_ = true; }
  NormState sums_state() const override { return state_; }
  void leave_sums() override { leaves_sums_ = true; }

  void forward(const Pass& pass) override {
    if (!pass.training || !b_.training)
      check(launch_norm_constants(cut_, state(), context_.handle()));
    else if (!has_statistics_)
      check(launch_norm_statistics(b_.type, b_.inputs[0].value, cut_, state(), context_.handle()));
    if (!leaves_output_) normalize();
  }

  bool runs_forward() const override { return !(has_statistics_ && leaves_output_); }

  std::optional<Workspaces> workspaces() const override { return Workspaces{}; }

  void recompute() override {
    if (!leaves_output_) normalize();
  }

  void backward() override {
    if (!leaves_sums_) gradient_sums();
    if (gradient_.dx) check(launch_norm_gradient(b_.type, gradient_, cut_, state(), context_.handle()));
  }

 private:
  NormState state() const { return context_.here(state_); }

  Context& context_;
  Binding b_;
  Cut cut_;
  NormState state_;
  NormGradient gradient_;
  bool has_statistics_ = false;  // by the operation that wrote the input
  bool leaves_output_ = false, leaves_sums_ = false;
};

}  // namespace

std::unique_ptr<Op> make_batch_norm(Context& context, const Binding& binding, const BatchNormDesc& desc) {
  return std::make_unique<BatchNormOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
