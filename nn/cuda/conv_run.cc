#include "nn/cuda/conv_run.h"

namespace lpsgd::cuda {
namespace {

constexpr std::int64_t alignment = 256;

/// A tensor as matrices: (batch, pixels, channels), or (filters, pixels, channels).
struct Matrices {
  DataType type = DataType::f32;
  std::int64_t batch = 0, pixels = 0, channels = 0;
  /// Both layouts are the same bytes.
  bool is_symmetric() const { return pixels == 1 || channels == 1; }
  std::int64_t bytes() const {
    return (batch * pixels * channels * size_of(type) + alignment - 1) / alignment * alignment;
  }
};

Matrices matrices_of(const ConvProblem& p, ConvTensor tensor) {
  switch (tensor) {
    case conv_input:
      return {p.type, p.batch, p.in[0] * p.in[1], p.in[2]};
    case conv_weights:
      return {p.pass == ConvPass::weight_gradient ? p.gradient_type : p.type, p.out[2],
              p.kernel.h * p.kernel.w, p.in[2] / p.groups};
    case conv_output:
      return {p.type, p.batch, p.out[0] * p.out[1], p.out[2]};
    case conv_bias:
      break;
  }
  return {p.type, 1, 1, p.out[2]};
}

}  // namespace

ConvTensor written_by(ConvPass pass) {
  switch (pass) {
    case ConvPass::input_gradient:
      return conv_input;
    case ConvPass::weight_gradient:
      return conv_weights;
    case ConvPass::forward:
      break;
  }
  return conv_output;
}

std::int64_t workspace_of(const ConvProblem& problem, const ConvChoice& choice) {
  if (choice.own) return small_conv_workspace(*choice.own, problem.pass);
  std::int64_t bytes = choice.plan->workspace();
  if (choice.layout == Layout::nhwc) return bytes;
  for (const ConvTensor tensor : {conv_input, conv_weights, conv_output}) {
    const Matrices m = matrices_of(problem, tensor);
    if (!m.is_symmetric()) bytes += m.bytes();
  }
  return bytes;
}

void run_own_conv(Context& context, const SmallConv& conv, ConvPass pass, const SmallConvTensors& tensors) {
  check(run_small_conv(conv, pass, tensors, context.workspace(small_conv_workspace(conv, pass)),
                       context.handle()));
}

ConvRun::ConvRun(Context& context, const ConvProblem& problem, const ConvChoice& choice,
                 const ConvTensors& tensors)
    : context_(&context), plan_(choice.plan) {
  auto* free = static_cast<std::byte*>(context.workspace(workspace_of(problem, choice)));
  ConvTensors bound;
  for (const auto& [tensor, memory] : tensors) {
    if (tensor == conv_bias && !(choice.fused && problem.bias)) continue;
    const Matrices m = matrices_of(problem, tensor);
    if (choice.layout == Layout::nhwc || m.is_symmetric()) {
      bound.emplace_back(tensor, memory);
      continue;
    }
    if (tensor == written_by(problem.pass))
      after_ = {m.type, free, const_cast<void*>(memory), m.batch, m.channels, m.pixels};
    else
      before_.push_back({m.type, memory, free, m.batch, m.pixels, m.channels});
    bound.emplace_back(tensor, free);
    free += m.bytes();
  }
  pack_ = bind_plan(bound, free);
}

void ConvRun::queue(const Transpose& t) const {
  check(launch_transpose(t.type, t.from, t.to, t.batch, t.a, t.b, context_->handle()));
}

void ConvRun::operator()() const {
  for (const Transpose& t : before_) queue(t);
  check(cudnnBackendExecute(context_->cudnn, plan_->plan().get(), pack_->get()));
  if (after_) queue(*after_);
}

}  // namespace lpsgd::cuda
