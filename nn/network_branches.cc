// The tasks of a network's passes: what memory each uses, and which branches it may run on.
#include <algorithm>

#include "core/log.h"
#include "nn/network_impl.h"

namespace lpsgd {

namespace {

// They matter only where tasks are divided over branches, and are rough: of a large GPU in bfloat16.
constexpr double seconds_per_launch = 4e-6, bytes_per_second = 3e12, flops_per_second = 2e14;

/// A task that takes more workspace runs on branch 0.
constexpr std::int64_t largest_side_workspace = std::int64_t{32} << 20;

double seconds_of(const OperationCost& cost) {
  return seconds_per_launch + std::max(static_cast<double>(cost.bytes) / bytes_per_second,
                                       static_cast<double>(cost.flops) / flops_per_second);
}

}  // namespace

/// Makes the tasks of the plan's steps.
class Network::Impl::TaskMaker {
 public:
  TaskMaker(const Graph& graph, const Plan& plan, const Impl& network)
      : graph_(graph), plan_(plan), network_(network) {}

  void forward() {
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      const PlanStep& step = plan_.steps[s];
      add(Kind::forward, s, seconds_of(network_.steps[s].forward_cost));
      for (const std::size_t v : step.inputs) reads(plan_.values[v]);
      if (step.residual) reads(plan_.values[*step.residual]);
      writes(plan_.values[step.output]);
      use_state(s, true);
      if (op(s).shares_with_source()) reads_norm(s);
      allow(workspaces(s, &Workspaces::forward));
    }
  }

  void backward() {
    add(Kind::loss, 0, seconds_per_launch);
    reads(plan_.values[plan_.value_of.back()]);
    writes(plan_.gradients[0]);
    for (std::size_t s = plan_.steps.size(); s-- > 0;) {
      if (!plan_.steps[s].has_backward) continue;
      if (!plan_.steps[s].recomputed.empty() || plan_.steps[s].sum_into) prepare(s);
      op(s).has_backward_parts() ? backward_in_parts(s) : backward_whole(s);
    }
  }

  std::vector<Task> take() { return std::move(tasks_); }

 private:
  using Kind = Task::Kind;

  const Op& op(std::size_t s) const { return *network_.steps[s].op; }
  const Node& node(std::size_t s) const { return graph_.nodes[plan_.steps[s].node]; }

  void prepare(std::size_t s) {
    const PlanStep& step = plan_.steps[s];
    add(Kind::prepare, s, seconds_per_launch);
    for (const std::size_t r : step.recomputed) {
      const PlanStep& again = plan_.steps[r];
      for (const std::size_t v : again.inputs) reads(plan_.values[v]);
      if (again.residual) reads(plan_.values[*again.residual]);
      use_state(r, false);
      writes(plan_.values[again.output]);
    }
    if (step.sum_into) {
      for (const std::size_t g : step.output_gradients) reads(plan_.gradients[g]);
      if (step.masks_by_output) reads(plan_.values[step.output]);
      writes(plan_.gradients[*step.sum_into]);
    }
    allow(0);
  }

  void backward_whole(std::size_t s) {
    add(Kind::backward, s, seconds_of(network_.steps[s].backward_cost));
    reads_gradient(s);
    reads_values(s);
    writes_gradients(s);
    writes_parameters(s);
    if (op(s).shares_with_source()) reads_norm(s);
    allow(workspaces(s, &Workspaces::inputs));
  }

  void backward_in_parts(std::size_t s) {
    const PlanStep& step = plan_.steps[s];
    const double seconds = seconds_of(network_.steps[s].backward_cost) / 2;
    const bool has_inputs =
        std::ranges::any_of(step.input_gradients, [](const auto& g) { return g.has_value(); });
    if (has_inputs) {
      add(Kind::inputs, s, seconds);
      reads_gradient(s);
      writes_gradients(s);
      if (op(s).shares_with_source()) {
        reads_norm(s);
        // Its sums are the gradients of the norm's parameters. What else they give is read by the norm's
        // backward alone, behind the gradient that is written here.
        writes_parameters(source_of(s));
      }
      allow(workspaces(s, &Workspaces::inputs));
    }
    add(Kind::parameters, s, seconds);
    reads_gradient(s);
    reads_values(s);
    if (op(s).shares_with_source()) reads_norm(s);
    writes_parameters(s);
    allow(workspaces(s, &Workspaces::parameters));
    // All that follows depends on the gradients of the inputs.
    tasks_.back().needs.avoids_first = has_inputs;
  }

  // ---- what the newest task uses

  void add(Kind kind, std::size_t s, double seconds) {
    tasks_.push_back({.kind = kind, .step = s, .needs = {}});
    tasks_.back().needs.seconds = seconds;
  }
  void access(const Access& access) { tasks_.back().needs.accesses.push_back(access); }

  void use(const Plan::MemoryRange& range, bool writes) {
    const std::int64_t batch = network_.options.batch, size = size_of(range.type);
    Access a{.begin = range.offset * batch, .writes = writes};
    if (range.stride == 0) {
      a.end = a.begin + range.bytes() * batch;
    } else {
      a.stride = range.stride * size;
      a.column = range.column * size;
      a.width = range.width * size;
      a.end = a.begin + range.elements / range.width * batch * a.stride;
    }
    access(a);
  }
  void reads(const Plan::MemoryRange& range) { use(range, false); }
  void writes(const Plan::MemoryRange& range) { use(range, true); }

  /// What forward keeps outside of the activations.
  void use_state(std::size_t s, bool writes) {
    const auto at = static_cast<std::int64_t>(s);
    access({.space = Access::Space::state, .begin = at, .end = at + 1, .writes = writes});
  }

  /// The step that writes the first input of step s.
  std::size_t source_of(std::size_t s) const {
    const auto source = std::ranges::find(plan_.steps, plan_.steps[s].inputs[0], &PlanStep::output);
    return static_cast<std::size_t>(source - plan_.steps.begin());
  }
  /// The batch norm whose work step s does in part.
  void reads_norm(std::size_t s) {
    const std::size_t norm = source_of(s);
    reads(plan_.values[plan_.steps[norm].inputs[0]]);
    use_state(norm, false);
  }
  void reads_gradient(std::size_t s) {
    const PlanStep& step = plan_.steps[s];
    if (step.sum_into) return reads(plan_.gradients[*step.sum_into]);
    for (const std::size_t g : step.output_gradients) reads(plan_.gradients[g]);
  }
  void reads_values(std::size_t s) {
    const PlanStep& step = plan_.steps[s];
    if (step.backward_reads_inputs)
      for (const std::size_t v : step.inputs) reads(plan_.values[v]);
    const bool reads_mask = step.masks_by_output && !step.sum_into;
    if (reads_mask || node(s).layer->backward_reads_output()) reads(plan_.values[step.output]);
    use_state(s, false);
  }
  void writes_gradients(std::size_t s) {
    const PlanStep& step = plan_.steps[s];
    if (step.masked) writes(plan_.gradients[*step.masked]);
    for (const std::optional<std::size_t>& g : step.input_gradients)
      if (g) writes(plan_.gradients[*g]);
  }
  void writes_parameters(std::size_t s) {
    if (node(s).frozen) return;
    for (const std::size_t t : node(s).tensors) {
      const TensorInfo& tensor = network_.tensors[t];
      access({.space = Access::Space::gradients,
              .begin = tensor.offset,
              .end = tensor.offset + tensor.elements,
              .writes = true});
    }
  }

  std::optional<std::int64_t> workspaces(std::size_t s, std::int64_t Workspaces::*part) const {
    const std::optional<Workspaces> all = op(s).workspaces();
    return all ? std::optional((*all).*part) : std::nullopt;
  }
  /// Where the task may run, by the workspace that it takes.
  void allow(std::optional<std::int64_t> workspace) {
    if (!workspace || *workspace > largest_side_workspace) return;
    BranchTask& needs = tasks_.back().needs;
    needs.last_branch = *workspace > 0 ? 1 : most_branches - 1;
    needs.workspace = *workspace;
  }

  const Graph& graph_;
  const Plan& plan_;
  const Impl& network_;
  std::vector<Task> tasks_;
};

BranchSchedule Network::Impl::schedule_of(std::span<const Task> tasks) {
  std::vector<BranchTask> needs;
  double seconds = 0;
  for (const Task& task : tasks) {
    needs.push_back(task.needs);
    seconds += task.needs.seconds;
  }
  BranchSchedule out = place_on_branches(needs);
  log::debug("{} tasks, {:.3f} ms one after the other, {:.3f} ms on {} branches, by estimates", tasks.size(),
             1e3 * seconds, 1e3 * out.seconds, out.branches());
  return out;
}

void Network::Impl::make_branches(const Graph& graph, const Plan& plan) {
  if (!uses_graphs || options.branches == Branches::never) return;
  for (const Step& step : steps)
    require(!step.op->runs_rowwise_source(), "a step runs another one's backward: its tasks are not known");
  TaskMaker forward(graph, plan, *this), backward(graph, plan, *this);
  forward.forward();
  forward_tasks = forward.take();
  if (!options.inference_only) {
    backward.backward();
    backward_tasks = backward.take();
  }
  std::int64_t workspace = 0;
  for (const std::vector<Task>* tasks : {&forward_tasks, &backward_tasks})
    for (const Task& task : *tasks)
      if (task.needs.last_branch > 0) workspace = std::max(workspace, task.needs.workspace);
  forward_schedule = schedule_of(forward_tasks);
  backward_schedule = schedule_of(backward_tasks);
  if (!forward_schedule.is_parallel() && !backward_schedule.is_parallel()) return;
  has_branches = backend->reserve_branches(workspace, options.branches == Branches::measured);
}

std::span<const Network::Impl::Task> Network::Impl::tasks_of(std::size_t begin, std::size_t end) const {
  const bool has_loss = end == steps.size();
  const auto first =
      has_loss ? backward_tasks.begin() : std::ranges::find_if(backward_tasks, [&](const Task& task) {
        return task.kind != Task::Kind::loss && task.step < end;
      });
  const auto last = std::find_if(first, backward_tasks.end(), [&](const Task& task) {
    return task.kind != Task::Kind::loss && task.step < begin;
  });
  return {first, last};
}

BranchSchedule Network::Impl::backward_schedule_of(std::size_t begin, std::size_t end) const {
  return has_branches ? schedule_of(tasks_of(begin, end)) : BranchSchedule{};
}

void Network::Impl::run_task(const Task& task) {
  Step& step = steps[task.step];
  switch (task.kind) {
    case Task::Kind::loss:
      return loss->backward();
    case Task::Kind::prepare:
      return prepare_backward(step);
    case Task::Kind::backward:
      return step.op->backward();
    case Task::Kind::inputs:
      return step.op->backward_inputs();
    case Task::Kind::parameters:
      return step.op->backward_parameters();
    case Task::Kind::forward:
    case Task::Kind::announce:
      break;
  }
  require(false, "no task of backward");
}

void Network::Impl::make_announcing_tasks() {
  std::size_t end = steps.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::span<const Task> own = tasks_of(segments[i].begin, end);
    announcing_tasks.insert(announcing_tasks.end(), own.begin(), own.end());
    Task& task = announcing_tasks.emplace_back(Task{.kind = Task::Kind::announce, .step = i, .needs = {}});
    task.needs.announces = true;
    for (std::size_t s = segments[i].begin; s < end; ++s)
      for (const std::size_t t : steps[s].tensors)
        task.needs.accesses.push_back({.space = Access::Space::gradients,
                                       .begin = tensors[t].offset,
                                       .end = tensors[t].offset + tensors[t].elements,
                                       .writes = true});
    end = segments[i].begin;
  }
  announcing_schedule = schedule_of(announcing_tasks);
}

bool Network::Impl::announces_on_branches() {
  if (!has_branches || segments.empty() || !backend->is_capturing()) return false;
  if (announcing_tasks.empty()) make_announcing_tasks();
  return announcing_schedule.is_parallel() && backend->prefers_branches(Backend::Part::backward_segment);
}

void Network::Impl::backward_with_announcements(const std::function<void(std::size_t)>& announce) {
  backend->run_on_branches(announcing_schedule, [&](std::size_t t) {
    const Task& task = announcing_tasks[t];
    if (task.kind != Task::Kind::announce) return run_task(task);
    mean(segments[task.step].mean);
    announce_segment(task.step, announce);
  });
}

void Network::Impl::forward_on_branches(const Pass& pass) {
  backend->run_on_branches(forward_schedule,
                           [&](std::size_t t) { steps[forward_tasks[t].step].op->forward(pass); });
}

void Network::Impl::backward_on_branches(std::size_t begin, std::size_t end, const BranchSchedule& schedule) {
  const std::span<const Task> tasks = tasks_of(begin, end);
  backend->run_on_branches(schedule, [&](std::size_t t) { run_task(tasks[t]); });
}

}  // namespace lpsgd
