// Convolution by cuDNN's graph API. Of the engines that cuDNN offers for a shape, the fastest on this device
// is used. It is measured once, on the memory of the operation. With `deterministic`, the first engine that
// cuDNN names is used instead. A plan includes bias and ReLU if that is faster than a separate pass.
#include <fmt/format.h>

#include "core/error.h"
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

constexpr int engines_measured = 8;

using Tensors = std::vector<std::pair<ConvTensor, const void*>>;

Descriptor bind(const Tensors& tensors, bool bias, void* workspace) {
  Tensors used;
  for (const auto& t : tensors)
    if (bias || t.first != conv_bias) used.push_back(t);
  return bind_plan(used, workspace);
}

std::string text_of(const ConvProblem& p) {
  static constexpr const char* passes[] = {"", ", gradient of the input", ", gradient of the weights"};
  return fmt::format("{} images {}, window {}x{}, stride {}x{}, pad {}x{}, {} filters in {} groups{}",
                     p.batch, shape_text(p.in), p.kernel.h, p.kernel.w, p.stride.h, p.stride.w, p.pad.h,
                     p.pad.w, p.out[2], p.groups, passes[static_cast<int>(p.pass)]);
}

/// `separate` queues bias and ReLU, for plans that do not include them.
ConvChoice choose(Context& context, const ConvProblem& problem, const Tensors& tensors,
                  const std::function<void()>& separate) {
  const auto known = context.conv_choices.find(problem.key());
  if (known != context.conv_choices.end()) return known->second;
  const ConvGraph::Target target{context.cudnn, nullptr};
  ConvChoice best;
  double fastest = 0;
  std::string trouble;
  for (const bool fused : {true, false}) {
    if (fused && !problem.bias && !problem.relu) continue;
    ConvProblem p = problem;
    if (!fused) p.bias = p.relu = false;
    int measured = 0;
    try {
      const ConvGraph graph(p, target);
      for (Descriptor& engine : graph.engines()) {
        if (measured == engines_measured) break;
        std::optional<ConvPlan> plan = graph.plan(std::move(engine));
        if (!plan || plan->workspace() > context.workspace_bytes) continue;
        const Descriptor pack = bind(tensors, p.bias, context.workspace);
        const std::optional<double> seconds = context.measure([&] {
          check(cudnnBackendExecute(context.cudnn, plan->plan().get(), pack.get()));
          if (!fused) separate();
        });
        if (!seconds) continue;
        ++measured;
        if (best.plan && *seconds >= fastest) continue;
        fastest = *seconds;
        best = {std::make_shared<const ConvPlan>(std::move(*plan)), fused};
        if (context.deterministic) break;
      }
    } catch (const DeviceError& e) {
      trouble = e.what();
    }
    if (context.deterministic && best.plan) break;
  }
  if (!best.plan)
    throw DeviceError(fmt::format("cuDNN cannot run a convolution ({}) in {} bytes of workspace{}{}",
                                  text_of(problem), context.workspace_bytes, trouble.empty() ? "" : ": ",
                                  trouble));
  context.conv_choices[problem.key()] = best;
  context.choices.push_back(fmt::format("convolution ({}): {}{}", text_of(problem), best.plan->text(),
                                        best.fused ? ", fused" : ""));
  return best;
}

class ConvOp final : public Op {
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
    Tensors tensors{{conv_input, b.inputs[0].value}, {conv_weights, weights}, {conv_output, b.output}};
    if (bias_) tensors.emplace_back(conv_bias, context.operand(b.parameters[1].value));
    p.bias = bias_;
    p.relu = b.relu;
    forward_ = plan(p, tensors, [this] { bias_and_relu(); });
    if (!b.training) return;
    p.bias = p.relu = false;
    const void* dy = b.output_gradients[0];
    if (b.inputs[0].gradient) {
      p.pass = ConvPass::input_gradient;
      input_gradient_ =
          plan(p, {{conv_input, b.inputs[0].gradient}, {conv_weights, weights}, {conv_output, dy}}, [] {});
    }
    // cuDNN writes the gradient of the weights in the type of its operands.
    low_gradient_ = b.type == DataType::f32 ? nullptr : context.allocate(w.info->elements * size_of(b.type));
    p.pass = ConvPass::weight_gradient;
    weight_gradient_ = plan(p,
                            {{conv_input, b.inputs[0].value},
                             {conv_weights, low_gradient_ ? low_gradient_ : w.gradient},
                             {conv_output, dy}},
                            [] {});
    if (!bias_) return;
    cut_ = cut_rows(rows_, b.shape[2]);
    partials_ = context.partials(static_cast<std::int64_t>(sizeof(double)) * cut_.parts * cut_.channels);
  }

  void forward(const Pass&) override {
    run(forward_);
    if (!forward_.choice.fused) bias_and_relu();
  }

  void backward() override {
    const ParameterView& w = b_.parameters[0];
    run(weight_gradient_);
    if (low_gradient_)
      check(launch_convert(low_gradient_, b_.type, w.gradient, DataType::f32, w.info->elements,
                           context_.handle()));
    if (bias_)
      check(launch_column_sums(b_.type, b_.output_gradients[0], cut_, static_cast<double*>(partials_),
                               b_.parameters[1].gradient, nullptr, context_.handle()));
    if (b_.inputs[0].gradient) run(input_gradient_);
  }

 private:
  struct Planned {
    ConvChoice choice;
    std::optional<Descriptor> pack;
  };

  Planned plan(const ConvProblem& problem, const Tensors& tensors, const std::function<void()>& separate) {
    Planned out{choose(context_, problem, tensors, separate), std::nullopt};
    out.pack = bind(tensors, problem.bias && out.choice.fused, context_.workspace);
    return out;
  }
  void run(const Planned& planned) const {
    check(cudnnBackendExecute(context_.cudnn, planned.choice.plan->plan().get(), planned.pack->get()));
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
  void* low_gradient_ = nullptr;
  Cut cut_;
  void* partials_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  return std::make_unique<ConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
