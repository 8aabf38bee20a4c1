// Convolution by cuDNN's graph API, with the engine and the layout that nn/cuda/conv_search.h chooses, or by
// our own kernels where that takes them. A plan includes bias and ReLU if that is faster than a separate
// pass.
#include <fmt/format.h>

#include <algorithm>

#include "nn/cuda/conv_norm.h"
#include "nn/cuda/conv_run.h"
#include "nn/cuda/conv_search.h"

namespace lpsgd::cuda {
namespace {

class ConvOp final : public Op, public StatisticsSource {
 public:
  ConvOp(Context& context, const Binding& b, const ConvDesc& desc)
      : context_(context), b_(b), bias_(desc.bias) {
    ConvProblem p;
    p.compute = context.compute;
    p.type = p.gradient_type = b.type;
    p.batch = b.batch;
    p.in = b.inputs[0].shape;
    p.out = b.shape;
    p.kernel = desc.kernel;
    p.stride = desc.stride;
    p.pad = desc.pad;
    p.groups = desc.groups;
    p.deterministic = context.deterministic;
    rows_ = b.batch * b.shape[0] * b.shape[1];

    const ParameterView& w = b.parameters[0];
    const void* weights = context.operand(w.value);
    ConvTensors tensors{{conv_input, b.inputs[0].value}, {conv_weights, weights}, {conv_output, b.output}};
    if (bias_) tensors.emplace_back(conv_bias, context.operand(b.parameters[1].value));
    p.bias = bias_;
    p.relu = b.relu;
    SmallConvTensors own;
    own.input = const_cast<void*>(b.inputs[0].value);
    own.weights = weights;
    own.output = b.output;
    own.bias = bias_ ? b.parameters[1].value : nullptr;
    own.relu = b.relu;
    forward_ = plan(p, tensors, own, [this] { bias_and_relu(); });
    if (!b.training) return;
    p.bias = p.relu = false;
    const void* dy = b.output_gradients[0];
    own.output = const_cast<void*>(dy);
    if (b.inputs[0].gradient) {
      p.pass = ConvPass::input_gradient;
      own.input = b.inputs[0].gradient;
      input_gradient_ = plan(
          p, {{conv_input, b.inputs[0].gradient}, {conv_weights, weights}, {conv_output, dy}}, own, [] {});
    }
    // cuDNN writes the gradient of the weights in the type of its operands.
    low_gradient_ = b.type == DataType::f32 ? nullptr : context.allocate(w.info->elements * size_of(b.type));
    p.pass = ConvPass::weight_gradient;
    own.input = const_cast<void*>(b.inputs[0].value);
    own.weight_gradient = w.gradient;
    weight_gradient_ = plan(p,
                            {{conv_input, b.inputs[0].value},
                             {conv_weights, low_gradient_ ? low_gradient_ : w.gradient},
                             {conv_output, dy}},
                            own, [this] { widen_gradient(); });
    if (auto* const norm = dynamic_cast<NormSource*>(b.input_source)) join(*norm);
    if (!bias_) return;
    cut_ = cut_rows(b.type, rows_, b.shape[2]);
    partials_ = context.partials<double>(cut_);
  }

  void forward(const Pass& pass) override {
    if (norm_ && pass.training)
      return check(
          run_small_conv(*forward_.choice.own, forward_.own, context_.here(*norm_), context_.handle()));
    run(forward_);
    if (!forward_.choice.fused) bias_and_relu();
  }

  void backward() override {
    backward_parameters();
    backward_inputs();
  }
  bool has_backward_parts() const override { return true; }
  void backward_parameters() override {
    run(weight_gradient_);
    if (!weight_gradient_.choice.fused) widen_gradient();
    if (bias_)
      check(launch_column_sums(b_.type, b_.output_gradients[0], cut_, context_.here(partials_),
                               b_.parameters[1].gradient, nullptr, context_.handle()));
  }
  void backward_inputs() override {
    if (norm_before_)
      check(run_small_conv(*input_gradient_.choice.own, input_gradient_.own, norm_before_->input,
                           context_.here(norm_before_->state), context_.handle()));
    else if (b_.inputs[0].gradient)
      run(input_gradient_);
  }
  std::optional<Workspaces> workspaces() const override {
    return Workspaces{workspace_of(forward_), workspace_of(input_gradient_), workspace_of(weight_gradient_)};
  }
  bool shares_with_source() const override { return computes_input() || norm_before_; }

  bool computes_input() const override { return forward_.own.norm.x != nullptr; }

  bool take_statistics(const NormState& state, std::int64_t rows, std::int64_t channels) override {
    if (norm_ || !forward_.choice.own || rows != rows_ || channels != b_.shape[2]) return false;
    norm_ = state;
    norm_->partials = context_.partials<double2>(small_conv_norm_partials(*forward_.choice.own));
    norm_->finished = context_.counters(1);
    const std::string choice =
        fmt::format("batch norm ({} rows of {} channels): statistics by the convolution", rows, channels);
    if (std::ranges::find(context_.choices, choice) == context_.choices.end())
      context_.choices.push_back(choice);
    return true;
  }

 private:
  struct Planned {
    ConvProblem problem;
    ConvChoice choice;
    ConvTensors tensors;
    SmallConvTensors own;
    std::optional<ConvRun> run;  // since the first run: only then the workspace stays where it is
    std::size_t branch = 0;      // whose workspace it has
  };
  static std::int64_t workspace_of(const Planned& planned) {
    return planned.choice ? cuda::workspace_of(planned.problem, planned.choice) : 0;
  }

  Planned plan(const ConvProblem& problem, const ConvTensors& tensors, const SmallConvTensors& own,
               const std::function<void()>& separate) {
    return {problem, choose_conv(context_, problem, tensors, own, separate), tensors, own, std::nullopt};
  }
  /// Does parts of the work of the batch norm that writes the input, where that is faster.
  void join(NormSource& norm) {
    const NormInput input = norm.input_for(b_.inputs[0].gradient);
    if (input.x == nullptr) return;
    const auto pass = [](const Planned& planned) { return OwnPass{*planned.choice.own, planned.own}; };
    const auto loads_packs = [](const std::optional<SmallConv>& own) {
      return own && own->shape.stored_channels == own->shape.in_channels;
    };
    if (loads_packs(forward_.choice.own) && loads_packs(weight_gradient_.choice.own) &&
        loads_norm(context_, forward_.problem, norm, input, pass(forward_), pass(weight_gradient_))) {
      forward_.own.norm = weight_gradient_.own.norm = input;
      norm.leave_output();
    }
    if (!input_gradient_.choice.own) return;
    NormState state = norm.sums_state();
    state.partials = context_.partials<double2>(small_conv_norm_partials(*input_gradient_.choice.own));
    state.finished = context_.counters(1);
    if (!takes_sums(context_, input_gradient_.problem, norm, input, pass(input_gradient_), state)) return;
    norm_before_ = {input, state};
    norm.leave_sums();
  }
  void run(Planned& planned) const {
    if (planned.choice.own)
      return run_own_conv(context_, *planned.choice.own, planned.problem.pass, planned.own);
    if (!planned.run || planned.branch != context_.branch()) {
      planned.run.emplace(context_, planned.problem, planned.choice, planned.tensors);
      planned.branch = context_.branch();
    }
    (*planned.run)();
  }
  void widen_gradient() const {
    const ParameterView& w = b_.parameters[0];
    if (low_gradient_)
      check(launch_convert(low_gradient_, b_.type, w.gradient, DataType::f32, w.info->elements,
                           context_.handle()));
  }
  void bias_and_relu() const {
    if (bias_ || b_.relu)
      check(launch_bias_relu(b_.type, b_.output, bias_ ? b_.parameters[1].value : nullptr, b_.relu, rows_,
                             b_.shape[2], context_.handle()));
  }

  Context& context_;
  Binding b_;
  bool bias_;
  std::int64_t rows_ = 0;
  Planned forward_, input_gradient_, weight_gradient_;
  std::optional<NormState> norm_;  // of the batch norm whose statistics forward takes
  struct NormBefore {
    NormInput input;
    NormState state;
  };
  std::optional<NormBefore> norm_before_;  // the batch norm whose sums the gradient of the input takes
  void* low_gradient_ = nullptr;
  Cut cut_;
  double* partials_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  return std::make_unique<ConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
