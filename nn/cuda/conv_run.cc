#include "nn/cuda/conv_run.h"

#include <fmt/format.h>

#include "nn/cuda/space_to_depth.h"

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

/// Whether a run converts the tensor: it lies in the workspace for the plan.
bool is_converted(const ConvProblem& problem, const ConvChoice& choice, ConvTensor tensor) {
  if (choice.blocks) return tensor == conv_input || tensor == conv_weights;
  return tensor != conv_bias && choice.layout == Layout::nchw && !matrices_of(problem, tensor).is_symmetric();
}

/// Of a tensor in the workspace.
std::int64_t converted_bytes(const ConvProblem& problem, const ConvChoice& choice, ConvTensor tensor) {
  return matrices_of(choice.blocks ? in_blocks(problem) : problem, tensor).bytes();
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

const char* suffix_of(const ConvForm& form) {
  return form.blocks ? blocks_suffix : form.layout == Layout::nchw ? nchw_suffix : "";
}

std::string description_of(const ConvChoice& choice) {
  if (choice.own) return small_conv_name;
  return fmt::format("{}{}{}", choice.plan->text(), choice.fused ? ", fused" : "", suffix_of(choice));
}

std::int64_t workspace_of(const ConvProblem& problem, const ConvChoice& choice) {
  if (choice.own) return small_conv_workspace(*choice.own, problem.pass);
  std::int64_t bytes = choice.plan->workspace();
  for (const ConvTensor tensor : {conv_input, conv_weights, conv_output})
    if (is_converted(problem, choice, tensor)) bytes += converted_bytes(problem, choice, tensor);
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
    if (!is_converted(problem, choice, tensor)) {
      bound.emplace_back(tensor, memory);
      continue;
    }
    const Matrices m = matrices_of(problem, tensor);
    const bool is_written = tensor == written_by(problem.pass);
    const void* from = is_written ? free : memory;
    void* to = is_written ? const_cast<void*>(memory) : free;
    Launch convert;
    if (choice.blocks) {
      const auto launch = tensor == conv_input ? launch_space_to_depth
                          : is_written         ? launch_filters_from_blocks
                                               : launch_filters_to_blocks;
      convert = [=, blocks = blocks_of(problem)](cudaStream_t stream) {
        return launch(m.type, blocks, from, to, stream);
      };
    } else {
      const std::int64_t a = is_written ? m.channels : m.pixels, b = is_written ? m.pixels : m.channels;
      convert = [=](cudaStream_t stream) {
        return launch_transpose(m.type, from, to, m.batch, a, b, stream);
      };
    }
    if (is_written)
      after_ = std::move(convert);
    else
      before_.push_back(std::move(convert));
    bound.emplace_back(tensor, free);
    free += converted_bytes(problem, choice, tensor);
  }
  pack_ = bind_plan(bound, free);
}

void ConvRun::operator()() const {
  for (const Launch& launch : before_) check(launch(context_->handle()));
  check(cudnnBackendExecute(context_->cudnn, plan_->plan().get(), pack_->get()));
  if (after_) check(after_(context_->handle()));
}

}  // namespace lpsgd::cuda
