// Convolution by cuDNN's graph API, or by our own kernels where they cover the shape (nn/cuda/small_conv.h).
// Of these and the engines that cuDNN offers for a shape, the fastest on this device is used. It is measured
// once, on the memory of the operation, within a budget of time (nn/plan_search.h); later runs take the same.
// With `deterministic`, nothing is measured: our own kernel is used, or else the first engine that cuDNN
// names. A plan includes bias and ReLU if that is faster than a separate pass.
#include <fmt/format.h>

#include <charconv>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
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

void run_own(Context& context, const SmallConv& conv, ConvPass pass, const SmallConvTensors& tensors) {
  check(run_small_conv(conv, pass, tensors, context.workspace(small_conv_workspace(conv, pass)),
                       context.handle()));
}

/// One problem's candidates: our own kernel, then engines with bias and ReLU included, then without.
class ConvSearch {
 public:
  /// `separate` queues what comes behind plans that are not fused: bias and ReLU, or the conversion of the
  /// weights' gradient.
  ConvSearch(Context& context, const ConvProblem& problem, const Tensors& tensors,
             const SmallConvTensors& own_tensors, const std::function<void()>& separate)
      : context_(context),
        problem_(problem),
        tensors_(tensors),
        own_tensors_(own_tensors),
        separate_(separate) {}

  ConvChoice run() {
    if (const auto known = context_.plan_cache.find(name())) take(*known);
    if (best_) return best_;
    PlanSearch search = context_.search();
    measure_own(search);
    if (context_.deterministic && best_) return best_;
    for (const bool fused : {true, false}) {
      if (fused && !problem_.bias && !problem_.relu) continue;
      if (search.over()) break;
      try {
        measure_engines(search, fused);
      } catch (const DeviceError& e) {
        trouble_ = e.what();
      }
      if (context_.deterministic && best_) break;
    }
    if (!best_)
      throw DeviceError(fmt::format("cuDNN cannot run a convolution ({}) in {} bytes of workspace{}{}",
                                    text_of(problem_), context_.workspace_limit, trouble_.empty() ? "" : ": ",
                                    trouble_));
    if (!context_.deterministic && !search.cut_off()) context_.plan_cache.add(name(), choice_);
    return best_;
  }

 private:
  std::string name() const { return "convolution " + key_text(problem_.key()); }
  ConvGraph graph(bool fused) const {
    ConvProblem p = problem_;
    if (!fused) p.bias = p.relu = false;
    return ConvGraph(p, {context_.cudnn, nullptr});
  }
  /// How the cache names it: cuDNN names engines in the same order each time.
  static std::string text_of_choice(bool fused, std::size_t position, const ConvPlan& plan) {
    return fmt::format("{} {} {}", fused ? "fused" : "plain", position, plan.text());
  }
  bool usable(const std::optional<ConvPlan>& plan) const {
    return plan && plan->workspace() <= context_.workspace_limit;
  }
  Descriptor pack_of(const ConvPlan& plan, bool fused) const {
    return bind(tensors_, fused && problem_.bias, context_.workspace(plan.workspace()));
  }
  std::function<void()> runner(const ConvPlan& plan, const Descriptor& pack, bool fused) const {
    return [this, &plan, &pack, fused] {
      check(cudnnBackendExecute(context_.cudnn, plan.plan().get(), pack.get()));
      if (!fused) separate_();
    };
  }

  /// With `deterministic` the kernel is taken without a run.
  void measure_own(PlanSearch& search) {
    const std::optional<SmallConv> own = plan_small_conv(problem_, context_.capability_major);
    if (!own) return;
    const std::int64_t workspace = small_conv_workspace(*own, problem_.pass);
    if (workspace > context_.workspace_limit || !context_.has_workspace(search, workspace)) return;
    const bool fastest =
        context_.deterministic ||
        context_.measure(search, fmt::format("convolution ({}): {}", text_of(problem_), small_conv_name),
                         [&] { run_own(context_, *own, problem_.pass, own_tensors_); });
    if (!fastest) return;
    choice_ = small_conv_name;
    best_ = {nullptr, own, true};
  }

  /// Takes the engine of an earlier run, if it is still there and runs.
  void take(const std::string& choice) {
    if (choice == small_conv_name) {
      const std::optional<SmallConv> own = plan_small_conv(problem_, context_.capability_major);
      if (own) best_ = {nullptr, own, true};
      return;
    }
    const bool fused = choice.starts_with("fused ");
    try {
      const ConvGraph problem = graph(fused);
      std::vector<Descriptor> engines = problem.engines();
      std::size_t position = 0;
      const std::string number = choice.substr(std::min<std::size_t>(6, choice.size()));
      if (std::from_chars(number.data(), number.data() + number.size(), position).ec != std::errc() ||
          position >= engines.size())
        return;
      std::optional<ConvPlan> plan = problem.plan(std::move(engines[position]));
      if (!usable(plan) || text_of_choice(fused, position, *plan) != choice) return;
      const Descriptor pack = pack_of(*plan, fused);
      runner(*plan, pack, fused)();
      context_.stream.synchronize();
      best_ = {std::make_shared<const ConvPlan>(std::move(*plan)), std::nullopt, fused};
    } catch (const DeviceError& e) {
      log::debug("{}: {}: {}", text_of(problem_), choice, e.what());
    }
  }

  void measure_engines(PlanSearch& search, bool fused) {
    const ConvGraph problem = graph(fused);
    std::vector<Descriptor> engines = problem.engines();
    int measured = 0;
    for (std::size_t i = 0; i < engines.size() && measured < engines_measured && !search.over(); ++i) {
      const double begin = now_seconds();
      std::optional<ConvPlan> plan = problem.plan(std::move(engines[i]));
      if (!usable(plan)) continue;
      const double built = now_seconds() - begin;
      const std::string engine = fmt::format("{}{}", plan->text(), fused ? ", fused" : "");
      if (!context_.has_workspace(search, plan->workspace())) {
        trouble_ =
            fmt::format("{} needs {} bytes of workspace, and there is no room", engine, plan->workspace());
        continue;
      }
      const Descriptor pack = pack_of(*plan, fused);
      const bool fastest = context_.measure(
          search, fmt::format("convolution ({}): {}", text_of(problem_), engine), runner(*plan, pack, fused));
      ++measured;
      log::debug("{}: {:.3f} s, {:.3f} s of them to build its plan", engine, now_seconds() - begin, built);
      if (!fastest) continue;
      choice_ = text_of_choice(fused, i, *plan);
      best_ = {std::make_shared<const ConvPlan>(std::move(*plan)), std::nullopt, fused};
      if (context_.deterministic) return;
    }
  }

  Context& context_;
  const ConvProblem& problem_;
  const Tensors& tensors_;
  const SmallConvTensors& own_tensors_;
  const std::function<void()>& separate_;
  ConvChoice best_;
  std::string choice_, trouble_;
};

ConvChoice choose(Context& context, const ConvProblem& problem, const Tensors& tensors,
                  const SmallConvTensors& own, const std::function<void()>& separate) {
  const auto known = context.conv_choices.find(problem.key());
  if (known != context.conv_choices.end()) return known->second;
  const ConvChoice best = ConvSearch(context, problem, tensors, own, separate).run();
  context.conv_choices[problem.key()] = best;
  context.keep_workspace(best.workspace(problem.pass));
  context.choices.push_back(fmt::format("convolution ({}): {}", text_of(problem), best.text()));
  return best;
}

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
    Tensors tensors{{conv_input, b.inputs[0].value}, {conv_weights, weights}, {conv_output, b.output}};
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
    if (!bias_) return;
    cut_ = cut_rows(rows_, b.shape[2]);
    partials_ = context.partials(static_cast<std::int64_t>(sizeof(double)) * cut_.parts * cut_.channels);
  }

  void forward(const Pass& pass) override {
    if (norm_ && pass.training)
      return check(run_small_conv(*forward_.choice.own, forward_.own, *norm_, context_.handle()));
    run(forward_);
    if (!forward_.choice.fused) bias_and_relu();
  }

  void backward() override {
    run(weight_gradient_);
    if (!weight_gradient_.choice.fused) widen_gradient();
    if (bias_)
      check(launch_column_sums(b_.type, b_.output_gradients[0], cut_, static_cast<double*>(partials_),
                               b_.parameters[1].gradient, nullptr, context_.handle()));
    if (b_.inputs[0].gradient) run(input_gradient_);
  }

  bool take_statistics(const NormState& state, std::int64_t rows, std::int64_t channels) override {
    if (norm_ || !forward_.choice.own || rows != rows_ || channels != b_.shape[2]) return false;
    const SmallConv& conv = *forward_.choice.own;
    norm_ = state;
    norm_->partials = static_cast<double2*>(
        context_.partials(static_cast<std::int64_t>(sizeof(double2)) * small_conv_norm_partials(conv)));
    norm_->finished = context_.counters(1);
    const std::string choice =
        fmt::format("batch norm ({} rows of {} channels): statistics by the convolution", rows, channels);
    if (std::ranges::find(context_.choices, choice) == context_.choices.end())
      context_.choices.push_back(choice);
    return true;
  }

 private:
  struct Planned {
    ConvChoice choice;
    ConvPass pass = ConvPass::forward;
    Tensors tensors;
    SmallConvTensors own;
    bool bias = false;
    std::optional<Descriptor> pack;  // since the first run: only then the workspace stays where it is
  };

  Planned plan(const ConvProblem& problem, const Tensors& tensors, const SmallConvTensors& own,
               const std::function<void()>& separate) {
    ConvChoice choice = choose(context_, problem, tensors, own, separate);
    const bool bias = problem.bias && choice.fused;
    return {std::move(choice), problem.pass, tensors, own, bias, std::nullopt};
  }
  Descriptor bind_planned(const Planned& planned) const {
    return bind(planned.tensors, planned.bias, context_.workspace(planned.choice.plan->workspace()));
  }
  void run(Planned& planned) const {
    if (planned.choice.own) return run_own(context_, *planned.choice.own, planned.pass, planned.own);
    if (!planned.pack) planned.pack = bind_planned(planned);
    check(cudnnBackendExecute(context_.cudnn, planned.choice.plan->plan().get(), planned.pack->get()));
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
  void* low_gradient_ = nullptr;
  Cut cut_;
  void* partials_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  return std::make_unique<ConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
