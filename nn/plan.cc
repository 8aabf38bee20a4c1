// Plans in passes over the graph: which layers are fused, which type each value has, which values need a
// gradient, and then which memory forward and backward use.
#include "nn/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>

#include "core/config.h"
#include "core/error.h"
#include "nn/offset_allocator.h"

namespace lpsgd {

namespace {

class Planner {
 public:
  Planner(const Graph& graph, bool training, DataType type, Recompute recompute, std::size_t delay)
      : graph_(graph), training_(training), type_(type), recompute_(recompute), delay_(delay) {}

  Plan run() {
    count_readers();
    find_gradient_needs();
    make_steps();
    find_types();
    find_homes();
    find_masks();
    count_backward_reads();
    find_recomputed();
    count_reads();
    find_only_readers();
    allocate_values();
    if (training_) plan_backward();
    place();
    return std::move(plan_);
  }

 private:
  const Layer& layer(std::size_t node) const { return *graph_.nodes[node].layer; }
  std::int64_t elements(std::size_t node) const { return elements_of(graph_.nodes[node].shape).value_or(0); }
  std::int64_t width(std::size_t node) const { return graph_.nodes[node].shape.back(); }

  void count_readers() {
    readers_.assign(graph_.nodes.size(), 0);
    for (const Node& node : graph_.nodes)
      for (const std::size_t i : node.inputs) ++readers_[i];
    ++readers_.back();  // the loss
  }

  /// A value needs a gradient if a tensor that is trained was used to compute it.
  void find_gradient_needs() {
    needs_gradient_.assign(graph_.nodes.size(), false);
    for (std::size_t n = 1; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      needs_gradient_[n] =
          (!node.frozen && !node.tensors.empty()) ||
          std::ranges::any_of(node.inputs, [&](std::size_t i) { return needs_gradient_[i]; });
    }
  }

  // ---- fusion

  /// The step that writes `node`, if it may take one more layer into its pass.
  std::optional<std::size_t> extendable(std::size_t node, bool residual, bool relu) const {
    if (readers_[node] != 1) return std::nullopt;
    for (std::size_t s = plan_.steps.size(); s-- > 0;) {
      const PlanStep& step = plan_.steps[s];
      if (step.output != node) continue;
      if (step.relu || (step.residual && residual)) return std::nullopt;
      const Epilogue epilogue{residual || step.residual.has_value(), relu};
      return layer(step.node).can_fuse(epilogue) ? std::optional(s) : std::nullopt;
    }
    return std::nullopt;
  }

  void extend(std::size_t s, std::size_t node, std::optional<std::size_t> residual, bool relu) {
    PlanStep step = plan_.steps[s];
    plan_.steps.erase(plan_.steps.begin() + static_cast<std::ptrdiff_t>(s));
    step.output = node;
    if (residual) step.residual = residual;
    step.relu = step.relu || relu;
    plan_.steps.push_back(std::move(step));  // it runs at the position of the last fused layer
    // The step that wrote its input moves along if the two can then run backward row by row.
    const auto last = plan_.steps.end() - 1;
    const auto writer =
        std::find_if(plan_.steps.begin(), last, [&](const PlanStep& w) { return runs_rowwise(*last, w); });
    std::rotate(writer, writer == last ? last : writer + 1, last);
  }

  void make_steps() {
    plan_.value_of.resize(graph_.nodes.size());
    for (std::size_t n = 1; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      plan_.value_of[n] = n;
      if (node.layer->is_view()) {
        plan_.value_of[n] = plan_.value_of[node.inputs[0]];
        continue;
      }
      if (node.layer->is_relu()) {
        if (const auto s = extendable(node.inputs[0], false, true)) {
          extend(*s, n, std::nullopt, true);
          continue;
        }
      }
      if (node.layer->is_sum() && node.inputs.size() == 2 && fuse_sum(n)) continue;
      PlanStep step;
      step.node = step.output = n;
      for (const std::size_t i : node.inputs) step.inputs.push_back(plan_.value_of[i]);
      plan_.steps.push_back(std::move(step));
    }
  }

  /// Whether the backward of `step` can hand its input's gradient row by row to that of `before`, if `before`
  /// runs right before it in forward.
  bool runs_rowwise(const PlanStep& step, const PlanStep& before) const {
    // The node itself, not a view of it: others may read the view.
    return layer(step.node).emits_gradient_rows() && layer(before.node).accepts_gradient_rows() &&
           graph_.nodes[step.node].inputs[0] == before.output && readers_[before.output] == 1 &&
           !before.relu && !before.residual;
  }

  bool fuse_sum(std::size_t n) {
    const std::vector<std::size_t>& in = graph_.nodes[n].inputs;
    for (const auto& [main, other] : {std::pair(in[0], in[1]), std::pair(in[1], in[0])}) {
      const auto s = extendable(main, true, false);
      if (!s) continue;
      // A frozen layer has no backward, which could hand a gradient to the residual.
      if (graph_.nodes[plan_.steps[*s].node].frozen && needs_gradient_[other]) continue;
      extend(*s, n, plan_.value_of[other], false);
      return true;
    }
    return false;
  }

  /// bfloat16 cannot hold token numbers, so what an embedding reads stays float32.
  void find_types() {
    types_.assign(graph_.nodes.size(), type_);
    if (type_ == DataType::f32) return;
    for (const PlanStep& step : plan_.steps)
      if (layer(step.node).reads_tokens()) types_[step.inputs[0]] = DataType::f32;
    for (const PlanStep& step : plan_.steps) {
      bool mixed = types_[step.output] != type_ || (step.residual && types_[*step.residual] != type_);
      for (const std::size_t v : step.inputs)
        mixed = mixed || (types_[v] != type_ && !layer(step.node).reads_tokens());
      const Node& node = graph_.nodes[step.node];
      if (mixed)
        config::fail(node.origin, fmt::format("layer '{}'", node.name),
                     "with compute: bf16 only an embedding may read or write token numbers");
    }
  }

  /// Which values lie in the memory of the concatenation that reads them.
  void find_homes() {
    home_.resize(graph_.nodes.size());
    column_.assign(graph_.nodes.size(), 0);
    for (std::size_t v = 0; v < home_.size(); ++v) home_[v] = v;
    std::vector<const PlanStep*> writers(graph_.nodes.size(), nullptr);
    for (const PlanStep& step : plan_.steps) writers[step.output] = &step;
    for (const PlanStep& concat : plan_.steps) {
      if (!layer(concat.node).is_concat()) continue;
      std::int64_t column = 0;
      for (const std::size_t v : graph_.nodes[concat.node].inputs) {
        const PlanStep* writer = writers[v];  // null also where v is a view
        if (writer != nullptr && readers_[v] == 1 && !writer->residual &&
            layer(writer->node).can_write_columns()) {
          home_[v] = concat.output;
          column_[v] = column;
        }
        column += width(v);
      }
    }
  }
  /// Where `value` lies in `range`, which is of the shape of its home.
  Plan::MemoryRange columns_of(const Plan::MemoryRange& range, std::size_t value) const {
    return {range.offset, elements(value), range.type, width(value), width(home_[value]), column_[value]};
  }

  // ---- the memory of values: it is in use from forward's write to the last read, which may be backward's

  /// Whether all terms of the output's gradient are terms of the inputs'.
  bool hands_on(const PlanStep& step) const {
    const Layer& main = layer(step.node);
    return (main.is_sum() || main.hands_gradient_on()) && !step.relu;
  }

  /// Which steps' backward takes the ReLU's mask from the output. It could only be computed from the input
  /// where no residual is added, and where one gradient arrives, which the mask then goes with.
  void find_masks() {
    std::vector<std::size_t> gradients(graph_.nodes.size(), 0);  // at most, two standing for any number
    ++gradients[plan_.value_of.back()];
    for (const PlanStep& step : plan_.steps) {
      const bool passes_all_on = hands_on(step);
      for (const std::size_t v : step.inputs) gradients[v] += passes_all_on ? 2 : 1;
      if (step.residual) ++gradients[*step.residual];
    }
    for (PlanStep& step : plan_.steps)
      step.masks_by_output = step.relu && (!layer(step.node).can_mask_by_input() ||
                                           step.residual.has_value() || gradients[step.output] > 1);
  }

  void find_backward_reads() {
    for (PlanStep& step : plan_.steps) {
      if (!training_ || !needs_gradient_[step.output]) continue;
      const Layer& main = layer(step.node);
      step.backward_reads_output = step.masks_by_output || main.backward_reads_output();
      step.backward_reads_inputs = main.backward_reads_input();
    }
  }
  /// Calls body(value) for every value that the step's backward reads.
  template <class Body>
  void backward_reads(const PlanStep& step, const Body& body) const {
    if (step.backward_reads_output) body(step.output);
    if (step.backward_reads_inputs)
      for (const std::size_t v : step.inputs) body(v);
  }

  void count_backward_reads() {
    find_backward_reads();
    backward_reads_left_.assign(graph_.nodes.size(), 0);
    for (const PlanStep& step : plan_.steps)
      backward_reads(step, [&](std::size_t v) { ++backward_reads_left_[home_[v]]; });
    ++backward_reads_left_[plan_.value_of.back()];  // the caller reads the logits after the passes
  }

  /// Which values are not kept for backward, as it can write them once more.
  void find_recomputed() {
    recomputed_.assign(graph_.nodes.size(), false);
    writers_.resize(graph_.nodes.size());
    if (!training_ || recompute_ == Recompute::none) return;
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      const PlanStep& step = plan_.steps[s];
      if (!is_written_in_place(step)) writers_[home_[step.output]].push_back(s);
    }
    for (std::size_t h = 1; h < home_.size(); ++h) {
      recomputed_[h] =
          !writers_[h].empty() && h != plan_.value_of.back() && backward_reads_left_[h] > 0 &&
          std::ranges::all_of(writers_[h], [&](std::size_t s) { return can_recompute(plan_.steps[s]); });
      if (recomputed_[h])
        for (const std::size_t s : writers_[h])
          if (const auto r = plan_.steps[s].residual) ++backward_reads_left_[home_[*r]];
    }
  }
  /// Whether the step joins values that all lie in its output already.
  bool is_written_in_place(const PlanStep& step) const {
    return layer(step.node).is_concat() &&
           std::ranges::all_of(graph_.nodes[step.node].inputs,
                               [&](std::size_t v) { return home_[v] == step.output; });
  }
  /// Whether what the step reads is kept anyway: its inputs for its own backward, a residual for another's.
  bool can_recompute(const PlanStep& step) const {
    const bool keeps_residual = !step.residual || (backward_reads_left_[home_[*step.residual]] > 0 &&
                                                   !recomputed_[home_[*step.residual]]);
    return layer(step.node).can_recompute() && layer(step.node).backward_reads_input() && keeps_residual &&
           needs_gradient_[step.output] &&
           std::ranges::none_of(step.inputs, [&](std::size_t v) { return recomputed_[home_[v]]; });
  }

  void count_reads() {
    reads_.assign(graph_.nodes.size(), 0);
    for (const PlanStep& step : plan_.steps) {
      for (const std::size_t v : step.inputs) ++reads_[v];
      if (step.residual) ++reads_[*step.residual];
    }
    ++reads_[plan_.value_of.back()];
  }

  void find_only_readers() {
    if (!training_) return;
    std::vector<bool> is_only_input(graph_.nodes.size(), false);  // of a step
    for (const PlanStep& step : plan_.steps)
      if (step.inputs.size() == 1) is_only_input[step.inputs[0]] = true;
    for (PlanStep& step : plan_.steps) {
      const bool keeps_input =
          step.inputs.size() == 1 && step.backward_reads_inputs && !recomputed_[home_[step.inputs[0]]];
      step.has_one_reader = keeps_input && !step.backward_reads_output && reads_[step.output] == 1 &&
                            is_only_input[step.output];
    }
  }

  void free_value(std::size_t v) { arena_.release(value_buffers_[v]); }

  void allocate_values() {
    const std::size_t count = graph_.nodes.size();
    plan_.values.resize(count);
    value_buffers_.resize(count);
    std::vector<bool> allocated(count, false);
    const auto allocate = [&](std::size_t v) {
      if (allocated[v]) return;
      allocated[v] = true;
      plan_.values[v] = {.elements = elements(v), .type = types_[v]};
      value_buffers_[v] = arena_.allocate(plan_.values[v].bytes());
    };
    std::vector<std::size_t> left = reads_;
    allocate(0);
    for (const PlanStep& step : plan_.steps) {
      const std::size_t in = step.inputs[0];
      if (layer(step.node).can_run_in_place() && step.inputs.size() == 1 && reads_[in] == 1 && in != 0 &&
          backward_reads_left_[in] == 0) {
        plan_.values[step.output] = plan_.values[in];
        value_buffers_[step.output] = value_buffers_[in];
        continue;
      }
      const std::size_t home = home_[step.output];
      allocate(home);
      if (home != step.output) plan_.values[step.output] = columns_of(plan_.values[home], step.output);
      value_buffers_[step.output] = value_buffers_[home];
      const auto done = [&](std::size_t v) {
        if (--left[v] == 0 && (backward_reads_left_[v] == 0 || recomputed_[v]) && home_[v] == v)
          free_value(v);
      };
      for (const std::size_t v : step.inputs) done(v);
      if (step.residual) done(*step.residual);
    }
  }

  // ---- backward

  std::size_t new_gradient(std::int64_t size) {
    plan_.gradients.push_back({.elements = size, .type = type_});
    buffers_.push_back(plan_.gradients.size() - 1);
    gradient_buffers_.push_back(arena_.allocate(plan_.gradients.back().bytes()));
    waiting_.push_back(0);
    return plan_.gradients.size() - 1;
  }
  /// The gradient of `value`, as columns of that of its home.
  std::size_t gradient_columns(std::size_t value, std::size_t g) {
    plan_.gradients.push_back(columns_of(plan_.gradients[g], value));
    buffers_.push_back(g);
    gradient_buffers_.push_back(gradient_buffers_[g]);
    waiting_.push_back(0);
    return plan_.gradients.size() - 1;
  }
  void add_term(std::size_t value, std::size_t g) {
    if (!needs_gradient_[value]) return;
    gradient_terms_[value].push_back(g);
    ++waiting_[buffers_[g]];
  }
  /// `g` has been read: its memory is free once nobody waits for it.
  void finish(std::size_t g) { finished_.push_back(buffers_[g]); }

  void plan_backward() {
    gradient_terms_.resize(graph_.nodes.size());
    add_term(plan_.value_of.back(), new_gradient(elements(plan_.value_of.back())));
    for (std::size_t s = plan_.steps.size(); s-- > 0;) {
      PlanStep& step = plan_.steps[s];
      step.rowwise_backward =
          s > 0 && needs_gradient_[step.inputs[0]] && runs_rowwise(step, plan_.steps[s - 1]);
      backward_reads(step, [&](std::size_t v) { recompute(step, home_[v]); });
      if (step.rowwise_backward)
        backward_reads(plan_.steps[s - 1], [&](std::size_t v) { recompute(step, home_[v]); });
      backward_step(step);
      backward_reads(step, [&](std::size_t v) { finish_read(v); });
      if (step.rowwise_backward) continue;
      unused_.push_back(take_unused());
      if (unused_.size() <= delay_) continue;
      for (const std::size_t buffer : unused_.front()) arena_.release(buffer);
      unused_.pop_front();
    }
  }

  /// Has the value in `home` before the step's backward.
  void recompute(PlanStep& step, std::size_t home) {
    if (!recomputed_[home]) return;
    recomputed_[home] = false;  // from here on it is kept
    arena_.use_again(value_buffers_[home]);
    for (const std::size_t s : writers_[home]) {
      step.recomputed.push_back(s);
      if (const auto r = plan_.steps[s].residual) finish_read(*r);
    }
  }
  void finish_read(std::size_t value) {
    if (--backward_reads_left_[home_[value]] == 0) read_.push_back(home_[value]);
  }

  void backward_step(PlanStep& step) {
    step.input_gradients.resize(step.inputs.size());
    if (!needs_gradient_[step.output]) return;
    const Layer& main = layer(step.node);
    const std::int64_t size = elements(step.output);
    std::vector<std::size_t> sources = std::move(gradient_terms_[step.output]);
    require(!sources.empty(), "a value has no gradient");
    for (const std::size_t g : sources) --waiting_[buffers_[g]];

    // A gradient buffer that no other value waits for may be overwritten value by value.
    constexpr std::size_t no_gradient = SIZE_MAX;
    std::size_t spare = no_gradient;
    for (const std::size_t g : sources)
      if (buffers_[g] == g && waiting_[g] == 0) spare = g;

    // Terms of sums of sums would multiply: many are added up first.
    constexpr std::size_t few = 8;
    if (hands_on(step) && sources.size() <= few) {
      for (const std::size_t v : step.inputs)
        for (const std::size_t g : sources) add_term(v, g);
      for (const std::size_t g : sources) finish(g);
      return;
    }
    step.has_backward = true;
    if (const Node& node = graph_.nodes[step.node]; !node.frozen)
      for (const std::size_t t : node.own_tensors()) plan_.announce_order.push_back(t);
    step.output_gradients = sources;
    for (const std::size_t g : sources) finish(g);

    if ((sources.size() > 1 || step.masks_by_output) && !main.sums_gradients()) {
      step.sum_into = spare != no_gradient ? spare : new_gradient(size);
      if (spare == no_gradient) finish(*step.sum_into);
      spare = no_gradient;
    }
    const bool elementwise = main.sums_gradients();
    if (main.is_sum() || step.residual || (main.reads_gradients_twice() && sources.size() > 1)) {
      const bool alias = sources.size() == 1 && !step.relu;  // the sum's gradient is the output's
      if (alias) {
        if (step.residual) add_term(*step.residual, sources[0]);
      } else {
        require(!step.relu || step.masks_by_output, "a gradient is masked by an output that was not kept");
        step.masked = spare != no_gradient ? spare : new_gradient(size);
        if (spare == no_gradient) finish(*step.masked);
        if (step.residual) add_term(*step.residual, *step.masked);
      }
      spare = no_gradient;
      if (main.is_sum()) {
        for (const std::size_t v : step.inputs) add_term(v, *step.masked);
        return;
      }
    }
    for (std::size_t i = 0; i < step.inputs.size(); ++i) {
      const std::size_t v = step.inputs[i];
      if (!needs_gradient_[v]) continue;
      std::size_t g = spare;
      if (home_[v] == step.output && v != step.output)
        g = gradient_columns(v, step.sum_into.value_or(sources[0]));
      else if (!elementwise || spare == no_gradient)
        g = new_gradient(elements(v));
      if (g == spare) spare = no_gradient;
      step.input_gradients[i] = g;
      add_term(v, g);
    }
  }

  /// The arena's buffers that hold nothing any more: of the finished gradients that no value waits for, and
  /// of the values that have been read.
  std::vector<std::size_t> take_unused() {
    std::sort(finished_.begin(), finished_.end());
    finished_.erase(std::unique(finished_.begin(), finished_.end()), finished_.end());
    std::vector<std::size_t> out;
    for (const std::size_t g : finished_)
      if (waiting_[g] == 0) out.push_back(gradient_buffers_[g]);
    for (const std::size_t v : read_) out.push_back(value_buffers_[v]);
    finished_.clear();
    read_.clear();
    return out;
  }

  void place() {
    const OffsetAllocator::Layout layout = arena_.layout();
    for (std::size_t v = 0; v < plan_.values.size(); ++v)
      if (plan_.values[v].elements > 0) plan_.values[v].offset = layout.offsets[value_buffers_[v]];
    for (std::size_t g = 0; g < plan_.gradients.size(); ++g)
      plan_.gradients[g].offset = layout.offsets[gradient_buffers_[g]];
    plan_.arena = layout.bytes;
  }

  const Graph& graph_;
  bool training_;
  DataType type_;
  Recompute recompute_;
  std::size_t delay_;
  Plan plan_;
  std::vector<DataType> types_;       // per value
  std::vector<std::size_t> readers_;  // per node: how many read it
  std::vector<std::size_t> reads_;    // per value, by steps and the loss
  std::vector<bool> needs_gradient_;  // per value
  // The value in whose memory each value lies: its own, or that of a concatenation; and at which column.
  std::vector<std::size_t> home_;
  std::vector<std::int64_t> column_;
  std::vector<std::size_t> backward_reads_left_;   // per home: the reads of it that backward has still to do
  std::vector<std::vector<std::size_t>> writers_;  // per home: the steps that write it
  std::vector<bool> recomputed_;                   // per home: forward does not keep it
  std::vector<std::size_t> read_;                  // homes that the last steps have read for the last time
  std::vector<std::vector<std::size_t>> gradient_terms_;  // per value: buffers whose sum is its gradient
  std::vector<std::size_t> buffers_;                      // per gradient: the one in whose memory it lies
  std::vector<std::size_t> waiting_;   // per buffer: the values that it, or columns of it, is a term of
  std::vector<std::size_t> finished_;  // buffers that the last steps have read, or used as scratch memory
  std::vector<std::size_t> value_buffers_, gradient_buffers_;  // the arena's, per value and per gradient
  std::deque<std::vector<std::size_t>> unused_;  // buffers that the steps before left, not yet released
  OffsetAllocator arena_;
};

}  // namespace

Plan make_plan(const Graph& graph, bool training, DataType type, Recompute recompute, std::size_t delay) {
  return Planner(graph, training, type, recompute, delay).run();
}

Plan make_branching_plan(const Graph& graph, DataType type, Recompute recompute) {
  Plan least = make_plan(graph, true, type, recompute);
  for (const std::size_t delay : {8, 4, 2, 1}) {
    Plan plan = make_plan(graph, true, type, recompute, delay);
    if (plan.arena - least.arena <= least.arena / 64) return plan;
  }
  return least;
}

}  // namespace lpsgd
