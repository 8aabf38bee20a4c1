#include "nn/cuda/conv_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "nn/cuda/conv_accuracy.h"
#include "nn/cuda/space_to_depth.h"

namespace lpsgd::cuda {
namespace {

constexpr int engines_measured = 8;  // of each graph
constexpr int most_transforms = 6;   // before other engines

ConvGraph graph_of(ConvProblem problem, const ConvForm& form, cudnnHandle_t handle) {
  if (form.blocks) problem = in_blocks(problem);
  if (!form.fused) problem.bias = problem.relu = false;
  problem.layout = form.layout;
  return {problem, {handle, nullptr}};
}

/// How the cache names it: cuDNN names engines in the same order each time.
std::string stored_text(const ConvChoice& choice, std::size_t position) {
  return fmt::format("{} {} {}{}", choice.fused ? "fused" : "plain", position, choice.plan->text(),
                     suffix_of(choice));
}

/// The engines of one form, in cuDNN's order.
struct EngineList {
  explicit EngineList(const ConvForm& of) : form(of) {}
  ConvForm form;
  std::optional<ConvGraph> graph;
  std::vector<ConvEngine> engines;
  bool opened = false;  // cuDNN has been asked for them
  std::vector<bool> taken;
  int transforms = 0;  // that ran
  int measured = 0;
  double seconds = 0;  // that they took so far: to be found, built, run and checked
};

/// The engines of all forms, in lanes. The next one is of the lane that has taken the least time, so that a
/// search that ends early has seen what cuDNN expects to be the best of each.
///
/// Each layout is a lane. Plans that are fused are first, but not in fp32: cuDNN compiles them when they are
/// built, and a convolution in fp32 takes so long that a pass over its output less gains little.
class EngineQueue {
 public:
  EngineQueue(Context& context, const ConvProblem& problem) : context_(context), problem_(problem) {
    const bool fuses = problem.bias || problem.relu;
    const auto add_lane = [&](std::initializer_list<ConvForm> forms) {
      Lane lane;
      for (const ConvForm& form : forms)
        if (fuses || !form.fused) lane.emplace_back(form);
      if (!lane.empty()) lanes_.push_back(std::move(lane));
    };
    const ConvForm fused{true, Layout::nhwc}, plain{false, Layout::nhwc};
    const ConvForm fused_nchw{true, Layout::nchw}, plain_nchw{false, Layout::nchw};
    if (context.deterministic) {
      add_lane({fused, plain});
      return;
    }
    problem.compute == Compute::fp32 ? add_lane({plain, fused}) : add_lane({fused, plain});
    if (problem.type == DataType::f32) add_lane({plain_nchw, fused_nchw});
    if (has_blocks(problem)) add_lane({{true, Layout::nhwc, true}, {false, Layout::nhwc, true}});
  }

  struct Next {
    EngineList* list;
    std::size_t position;
  };
  /// Those that are checked, with a transform or over blocks, wait until there is something to compare with
  /// (`with_checked`). Then a few with a transform are first: cuDNN names them behind many others, and they
  /// may be twice as fast. Over blocks those without one are first.
  std::optional<Next> next(bool with_checked) {
    std::vector<Lane*> turns;
    for (Lane& lane : lanes_) turns.push_back(&lane);
    std::ranges::stable_sort(turns, {}, [](const Lane* lane) {
      double seconds = 0;
      for (const EngineList& list : *lane) seconds += list.seconds;
      return seconds;
    });
    for (Lane* lane : turns)
      for (EngineList& list : *lane)
        if (const auto position = next_of(list, with_checked)) return Next{&list, *position};
    return std::nullopt;
  }
  const std::string& trouble() const { return trouble_; }

 private:
  using Lane = std::vector<EngineList>;

  std::optional<std::size_t> next_of(EngineList& list, bool with_checked) {
    if (list.measured >= engines_measured || (list.form.blocks && !with_checked)) return std::nullopt;
    open(list);
    const auto take = [&](auto wanted) -> std::optional<std::size_t> {
      for (std::size_t i = 0; i < list.engines.size(); ++i) {
        if (list.taken[i] || !wanted(!list.engines[i].transform.empty())) continue;
        list.taken[i] = true;
        return i;
      }
      return std::nullopt;
    };
    if (!with_checked) return take([](bool transforms) { return !transforms; });
    const bool transforms_first = !list.form.blocks;
    if (list.transforms < most_transforms)
      if (const auto first = take([&](bool transforms) { return transforms == transforms_first; }))
        return first;
    return take([](bool) { return true; });
  }
  void open(EngineList& list) {
    if (list.opened) return;
    list.opened = true;
    const double begin = now_seconds();
    try {
      list.graph.emplace(graph_of(problem_, list.form, context_.cudnn));
      list.engines = list.graph->engines();
      list.taken.resize(list.engines.size());
    } catch (const DeviceError& e) {
      trouble_ = e.what();
    }
    list.seconds += now_seconds() - begin;
  }

  Context& context_;
  const ConvProblem& problem_;
  std::vector<Lane> lanes_;
  std::string trouble_;
};

class ConvSearch {
 public:
  ConvSearch(Context& context, const ConvProblem& problem, const ConvTensors& tensors,
             const SmallConvTensors& own, const std::function<void()>& separate)
      : context_(context),
        problem_(problem),
        tensors_(tensors),
        own_(own),
        separate_(separate),
        accuracy_(context, problem, tensors, own) {}

  ConvChoice run() {
    if (const auto known = context_.plan_cache.find(name())) take(*known);
    if (best_) return best_;
    PlanSearch search = context_.search();
    measure_own(search);
    EngineQueue queue(context_, problem_);
    while (!search.over() && !(context_.deterministic && best_)) {
      const auto next = queue.next(strict_.plan != nullptr);
      if (!next) break;
      const double begin = now_seconds();
      measure(search, *next->list, next->position);
      next->list->seconds += now_seconds() - begin;
    }
    if (trouble_.empty()) trouble_ = queue.trouble();
    if (!best_)
      throw DeviceError(fmt::format("cuDNN cannot run a convolution ({}) in {} bytes of workspace{}{}",
                                    text_of(problem_), context_.workspace_limit, trouble_.empty() ? "" : ": ",
                                    trouble_));
    if (!context_.deterministic && !search.cut_off()) context_.plan_cache.add(name(), stored_);
    return best_;
  }

 private:
  std::string name() const { return "convolution " + key_text(problem_.key()); }
  std::optional<ConvChoice> choice_of(const ConvGraph& graph, ConvEngine engine, const ConvForm& form) const {
    std::optional<ConvPlan> plan = graph.plan(std::move(engine));
    if (!plan) return std::nullopt;
    const ConvChoice out{form, std::make_shared<const ConvPlan>(std::move(*plan))};
    if (workspace_of(problem_, out) > context_.workspace_limit) return std::nullopt;
    return out;
  }
  std::function<void()> runner(const ConvRun& run, bool fused) const {
    return [this, &run, fused] {
      run();
      if (!fused) separate_();
    };
  }

  bool is_right(const SmallConv& own, const std::string& text) {
    try {
      if (accuracy_.accepts(own)) return true;
      log::warn("{} gives wrong results on this device, so cuDNN's engines are used; please report it", text);
    } catch (const DeviceError& e) {
      log::debug("{}: {}", text, e.what());
    }
    return false;
  }

  /// With `deterministic` the kernel is taken if it is right, and no time is measured.
  void measure_own(PlanSearch& search) {
    const std::optional<SmallConv> own = plan_small_conv(problem_, context_.capability_major);
    if (!own) return;
    const std::int64_t workspace = small_conv_workspace(*own, problem_.pass);
    if (workspace > context_.workspace_limit || !context_.has_workspace(search, workspace)) return;
    const std::string text = fmt::format("convolution ({}): {}", text_of(problem_), small_conv_name);
    const std::function<bool()> right = [&] { return is_right(*own, text); };
    const auto run = [&] { run_own_conv(context_, *own, problem_.pass, own_); };
    if (!(context_.deterministic ? right() : context_.measure(search, text, run, right))) return;
    stored_ = small_conv_name;
    best_ = {{.fused = true}, nullptr, own};
  }

  /// Takes the engine of an earlier run, if it is still there and runs. It was checked then.
  void take(const std::string& text) {
    if (text == small_conv_name) {
      const std::optional<SmallConv> own = plan_small_conv(problem_, context_.capability_major);
      if (own) best_ = {{.fused = true}, nullptr, own};
      return;
    }
    const ConvForm form{text.starts_with("fused "), text.ends_with(nchw_suffix) ? Layout::nchw : Layout::nhwc,
                        text.ends_with(blocks_suffix)};
    try {
      const ConvGraph graph = graph_of(problem_, form, context_.cudnn);
      std::vector<ConvEngine> engines = graph.engines();
      std::size_t position = 0;
      const std::string number = text.substr(std::min<std::size_t>(6, text.size()));
      if (std::from_chars(number.data(), number.data() + number.size(), position).ec != std::errc() ||
          position >= engines.size())
        return;
      const std::optional<ConvChoice> choice = choice_of(graph, std::move(engines[position]), form);
      if (!choice || stored_text(*choice, position) != text) return;
      const ConvRun run(context_, problem_, *choice, tensors_);
      runner(run, form.fused)();
      context_.stream.synchronize();
      best_ = *choice;
    } catch (const DeviceError& e) {
      log::debug("{}: {}: {}", text_of(problem_), text, e.what());
    }
  }

  void measure(PlanSearch& search, EngineList& list, std::size_t position) {
    const double begin = now_seconds();
    const bool transforms = !list.engines[position].transform.empty();
    const std::optional<ConvChoice> choice =
        choice_of(*list.graph, std::move(list.engines[position]), list.form);
    if (!choice) return;
    const double built = now_seconds() - begin;
    const std::string engine = description_of(*choice);
    const std::int64_t workspace = workspace_of(problem_, *choice);
    if (!context_.has_workspace(search, workspace)) {
      trouble_ = fmt::format("{} needs {} bytes of workspace, and there is no room", engine, workspace);
      return;
    }
    const ConvRun run(context_, problem_, *choice, tensors_);
    bool ran = false;
    const std::function<bool()> is_accurate = [&] { return accuracy_.accepts(*choice, strict_); };
    const bool fastest = context_.measure(
        search, fmt::format("convolution ({}): {}", text_of(problem_), engine),
        [&, queue = runner(run, list.form.fused)] {
          queue();
          ran = true;
        },
        transforms || list.form.blocks ? is_accurate : nullptr);
    ++list.measured;
    list.transforms += transforms && ran;
    if (!transforms && ran && !strict_.plan) strict_ = *choice;
    log::debug("{}: {:.3f} s, {:.3f} s of them to build its plan", engine, now_seconds() - begin, built);
    if (!fastest) return;
    stored_ = stored_text(*choice, position);
    best_ = *choice;
  }

  Context& context_;
  const ConvProblem& problem_;
  const ConvTensors& tensors_;
  const SmallConvTensors& own_;
  const std::function<void()>& separate_;
  ConvAccuracy accuracy_;
  ConvChoice best_, strict_;  // the fastest; the first without a transform that ran
  std::string stored_, trouble_;
};

}  // namespace

std::string text_of(const ConvProblem& p) {
  static constexpr const char* passes[] = {"", ", gradient of the input", ", gradient of the weights"};
  return fmt::format("{} images {}, window {}x{}, stride {}x{}, pad {}x{}, {} filters in {} groups{}",
                     p.batch, shape_text(p.in), p.kernel.h, p.kernel.w, p.stride.h, p.stride.w, p.pad.h,
                     p.pad.w, p.out[2], p.groups, passes[static_cast<int>(p.pass)]);
}

ConvChoice choose_conv(Context& context, const ConvProblem& problem, const ConvTensors& tensors,
                       const SmallConvTensors& own, const std::function<void()>& separate) {
  const auto known = context.conv_choices.find(problem.key());
  if (known != context.conv_choices.end()) return known->second;
  ConvChoice best = ConvSearch(context, problem, tensors, own, separate).run();
  context.conv_choices[problem.key()] = best;
  context.keep_workspace(workspace_of(problem, best));
  context.choices.push_back(fmt::format("convolution ({}): {}", text_of(problem), description_of(best)));
  return best;
}

}  // namespace lpsgd::cuda
