// What a network consists of: its plan, bound to the memory of a backend. network_build.cc makes it,
// network.cc runs it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/stopwatch.h"
#include "core/stream_trace.h"
#include "nn/accumulation.h"
#include "nn/branches.h"
#include "nn/graph.h"
#include "nn/network.h"
#include "nn/ops.h"
#include "nn/plan.h"

namespace lpsgd {

struct Network::Impl {
  /// An operation of the plan.
  struct Step {
    explicit Step(StreamView stream) : forward_time(stream), backward_time(stream) {}
    std::string name;
    std::unique_ptr<Op> op;
    std::unique_ptr<Op> gradient_sum;  // runs before op's backward, if op takes one gradient and has several
    std::vector<std::size_t> recomputed;  // the steps whose output backward needs again
    std::vector<std::size_t> tensors;
    GradientAccumulation::Mean mean;  // of their gradients
    bool has_backward = false;
    Stopwatch forward_time, backward_time;
    Trace::Label forward_label = 0, backward_label = 0, evaluate_label = 0;
    std::string kind;
    OperationCost forward_cost, backward_cost;
    std::int64_t elements = 0;
  };
  /// Activations in the backend's memory.
  struct Values {
    void* data = nullptr;
    DataType type = DataType::f32;
    std::int64_t elements = 0;
  };

  /// A part of a pass that may run beside others (nn/branches.h).
  struct Task {
    enum class Kind : std::uint8_t {
      forward,
      loss,
      prepare,
      backward,
      inputs,
      parameters,
      announce
    } kind = Kind::forward;
    std::size_t step = 0;  // to announce: a segment
    BranchTask needs;
  };

  explicit Impl(const NetworkOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void build(const Graph& graph);
  void forward(const Samples& samples, Pass pass);
  /// Runs a part of a step: `work`, or the same `on_branches`, if the schedule has several.
  template <class Work, class OnBranches>
  void run(Backend::Part part, std::size_t index, const Work& work, const BranchSchedule& schedule,
           const OnBranches& on_branches);
  /// What backward needs before the step's own: outputs computed again, and the sum of its gradients.
  void prepare_backward(Step& step);
  void backward(Step& step);
  /// Backward step by step. `announce` may be empty.
  void backward(const std::function<void(std::size_t)>& announce);
  /// Backward of a micro-batch, with what follows when all gradients are there.
  void backward_whole();
  void mean(const GradientAccumulation::Mean& of);
  GradientAccumulation::Mean mean_of_steps(std::size_t begin, std::size_t end) const;
  void backward_by_segments(const std::function<void(std::size_t)>& announce);
  void announce_segment(std::size_t index, const std::function<void(std::size_t)>& announce);

  // On several branches (nn/network_branches.cc). Backward is that of steps `begin` to before `end`, and of
  // the loss if the last step is among them.
  class TaskMaker;
  void make_branches(const Graph& graph, const Plan& plan);
  static BranchSchedule schedule_of(std::span<const Task> tasks);
  std::span<const Task> tasks_of(std::size_t begin, std::size_t end) const;
  BranchSchedule backward_schedule_of(std::size_t begin, std::size_t end) const;
  void run_task(const Task& task);
  /// Inserts into the tasks of backward those that announce the segments' tensors.
  void make_announcing_tasks();
  /// Whether backward, in a larger graph, is to be one part on branches in place of segments.
  bool announces_on_branches();
  void backward_with_announcements(const std::function<void(std::size_t)>& announce);
  void forward_on_branches(const Pass& pass);
  void backward_on_branches(std::size_t begin, std::size_t end, const BranchSchedule& schedule);

  NetworkOptions options;
  std::unique_ptr<Backend> backend;
  std::vector<TensorInfo> tensors, frozen_tensors;
  std::vector<std::size_t> announce_order;
  std::vector<NamedBuffer> buffers;
  /// What is carried from pass to pass: of the samples of all micro-batches, and what operations read and
  /// write, which is of one micro-batch.
  struct Carried {
    std::vector<NamedBuffer> all, running;
  };
  Carried carried, carried_in_evaluation;
  std::span<float> parameters, gradients, frozen_parameters;
  Values input, logits;
  std::unique_ptr<PixelInput> pixel_input;  // null: inputs are float32
  bool is_sequence = false;
  std::int64_t input_frames = 1;   // of a sequence
  std::int64_t scored_frames = 1;  // that have class scores; 1 where a sample has one label
  std::vector<float> host_logits;  // of the last forward
  bool has_host_logits = false;    // whether host_logits is up to date
  std::vector<Step> steps;
  std::unique_ptr<LossOp> loss;
  struct Segment {
    std::size_t begin = 0;  // its first step
    GradientAccumulation::Mean mean;
    BranchSchedule schedule;  // if the network has branches
  };
  std::vector<Segment> segments;  // in backward's order; empty: no segments, or no branches
  std::optional<GradientAccumulation> accumulation;  // of several micro-batches
  GradientAccumulation::Mean mean_of_all;
  std::int64_t micro_batch = 0, next_micro_batch = 0;  // of the last forward_train, of the next one
  bool is_trained = false;                             // whether the last forward was forward_train
  std::optional<StreamTrace> trace;                    // of the compute stream
  Trace::Label loss_forward_label = 0, loss_backward_label = 0, loss_evaluate_label = 0;
  Trace::Label add_label = 0, mean_label = 0;  // of accumulation
  bool measures_steps = true;
  bool uses_graphs = false;
  bool has_branches = false;
  std::vector<Task> forward_tasks, backward_tasks;  // in the order of the passes; only if it has branches
  BranchSchedule forward_schedule, backward_schedule;
  std::vector<Task> announcing_tasks;  // those of backward, and the announcements; made for the first graph
  BranchSchedule announcing_schedule;

 private:
  /// Runs `work`, with a span of it if there is a trace.
  template <class Work>
  void traced(Trace::Label label, const Work& work);
  template <class Fill>
  void fill(std::span<float> to, const Fill& fill) const;
  void make_parameters(const Graph& graph);
  void make_carried(const Graph& graph);
  void move_carried(const Samples& samples, bool training, bool in);
  /// The step that writes the first input, if it is one of those made so far.
  Step* source_of(const Plan& plan, const PlanStep& step);
  Binding bind(const Graph& graph, const Plan& plan, const PlanStep& step, std::byte* arena);
  void add_cost(const Graph& graph, const Plan& plan, const PlanStep& planned, Step& step);
  Step make_step(const Graph& graph, const Plan& plan, const PlanStep& planned, std::byte* arena);
  void upload(const Samples& samples, const Pass& pass);
  void check(const Samples& samples, const Pass& pass) const;
};

}  // namespace lpsgd
