// Binds the plan of a network to the memory of a backend.
#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "nn/init.h"
#include "nn/network_impl.h"

namespace lpsgd {

namespace {

void* allocate_for(Backend& backend, std::int64_t bytes_per_sample, std::int64_t batch) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(bytes_per_sample, batch, &bytes) || bytes > (std::int64_t{1} << 46))
    throw Error(fmt::format("the network's activations for {} samples do not fit in memory", batch));
  try {
    return backend.allocate(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("cannot allocate {} GB of memory for the network", bytes >> 30));
  }
}

std::span<float> allocate_floats(Backend& backend, std::int64_t elements) {
  return {static_cast<float*>(allocate_for(backend, elements, sizeof(float))),
          static_cast<std::size_t>(elements)};
}

}  // namespace

/// Fills the backend's memory from the host: calls fill(values) with host memory.
template <class Fill>
void Network::Impl::fill(std::span<float> to, const Fill& fill) const {
  const StreamView stream = backend->stream();
  if (!stream.device().is_cuda()) return fill(to);
  Buffer<float> host(to.size());
  fill(host.view());
  copy_values(to, host.view(), stream);
  stream.synchronize();
}

void Network::Impl::make_parameters(const Graph& graph) {
  tensors = graph.tensors;
  frozen_tensors = graph.frozen;
  const std::span<float> all = allocate_floats(*backend, graph.arena + graph.frozen_arena);
  parameters = all.first(static_cast<std::size_t>(graph.arena));
  frozen_parameters = all.subspan(parameters.size());
  if (!options.inference_only) gradients = allocate_floats(*backend, graph.arena);
  for (const GraphBuffer& b : graph.buffers) {
    buffers.push_back({b.name, b.shape, allocate_floats(*backend, elements_of(b.shape).value_or(0))});
    fill(buffers.back().values,
         [&](std::span<float> values) { std::fill(values.begin(), values.end(), b.initial); });
  }
  for (const Node& node : graph.nodes)
    for (const std::size_t b : node.buffers) buffers[b].frozen = node.frozen;
  fill(all, [&](std::span<float> values) {
    std::uint32_t number = 0;  // frozen tensors counted, so that freezing does not change initial weights
    for (const Node& node : graph.nodes)
      for (const std::size_t t : node.own_tensors()) {
        const TensorInfo& tensor = graph.tensor(node, t);
        const std::int64_t offset = tensor.offset + (node.frozen ? graph.arena : 0);
        initialize(
            tensor, number++, options.seed, graph.init(node, t),
            values.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(tensor.elements)));
      }
  });
  backend->parameters(all);
}

void Network::Impl::make_carried(const Graph& graph) {
  const auto buffer = [&](const GraphBuffer& c, std::int64_t samples) -> NamedBuffer {
    Shape shape = c.shape;
    shape.insert(shape.begin(), samples);
    return {c.name, shape, allocate_floats(*backend, samples * elements_of(c.shape).value_or(0))};
  };
  for (const GraphBuffer& c : graph.carried)
    for (Carried* of : {&carried, &carried_in_evaluation}) {
      of->all.push_back(buffer(c, options.batch * options.micro_batches));
      of->running.push_back(options.micro_batches == 1 ? of->all.back() : buffer(c, options.batch));
    }
}

Network::Impl::Step* Network::Impl::source_of(const Plan& plan, const PlanStep& step) {
  for (std::size_t s = 0; s < steps.size(); ++s)
    if (plan.steps[s].output == step.inputs[0]) return &steps[s];
  return nullptr;
}

Binding Network::Impl::bind(const Graph& graph, const Plan& plan, const PlanStep& step, std::byte* arena) {
  const std::int64_t batch = options.batch;
  const auto value = [&](std::size_t v) { return plan.values[v].in(arena, batch); };
  const auto gradient = [&](std::size_t g) { return plan.gradients[g].in(arena, batch); };
  const Node& node = graph.nodes[step.node];
  Binding b;
  b.batch = batch;
  b.training = !options.inference_only && (!node.frozen || step.has_backward);
  b.random = {options.seed, static_cast<std::uint32_t>(step.node), options.first};
  b.shape = node.shape;
  b.type = plan.values[step.output].type;
  b.output = value(step.output);
  b.output_stride = plan.values[step.output].stride;
  require(b.output_stride == 0 || (!step.residual && !step.masked && step.output_gradients.size() <= 1),
          "columns of a wider array have one gradient, and no residual");
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    const std::size_t v = step.inputs[i];
    InputView in{graph.nodes[node.inputs[i]].shape, plan.values[v].type, value(v), nullptr};
    if (step.has_backward && step.input_gradients[i]) in.gradient = gradient(*step.input_gradients[i]);
    b.inputs.push_back(std::move(in));
  }
  for (const std::size_t t : node.tensors) {
    const TensorInfo& tensor = (node.frozen ? frozen_tensors : tensors)[t];
    const bool has_gradient = !gradients.empty() && !node.frozen;
    b.parameters.push_back({&tensor, (node.frozen ? frozen_parameters : parameters).data() + tensor.offset,
                            has_gradient ? gradients.data() + tensor.offset : nullptr});
  }
  if (node.lends) b.parameters[0].adds = true;
  for (const std::size_t i : node.buffers) b.buffers.push_back(buffers[i].values.data());
  for (const std::size_t i : node.carried) {
    b.carried.push_back(carried.running[i].values.data());
    b.carried_in_evaluation.push_back(carried_in_evaluation.running[i].values.data());
  }
  if (step.sum_into)
    b.output_gradients = {gradient(*step.sum_into)};
  else
    for (const std::size_t g : step.output_gradients) b.output_gradients.push_back(gradient(g));
  if (step.residual) b.residual = value(*step.residual);
  b.relu = step.relu;
  if (step.masked) b.masked = gradient(*step.masked);
  if (step.rowwise_backward) b.rowwise_source = steps.back().op.get();
  if (const Step* const source = source_of(plan, step)) b.input_source = source->op.get();
  b.has_one_reader = step.has_one_reader;
  return b;
}

void Network::Impl::add_cost(const Graph& graph, const Plan& plan, const PlanStep& planned, Step& step) {
  const Node& node = graph.nodes[planned.node];
  const auto value = [&](std::size_t v) { return plan.values[v].bytes() * options.batch; };
  const auto gradient = [&](std::size_t g) { return plan.gradients[g].bytes() * options.batch; };
  // Columns are read by the concatenation they belong to alone, which copies the others.
  std::int64_t inputs = 0, columns = 0, weights = 0;
  for (const std::size_t v : planned.inputs) (plan.values[v].stride == 0 ? inputs : columns) += value(v);
  for (const std::size_t t : node.tensors) weights += graph.tensor(node, t).elements;
  const std::int64_t operand = size_of(plan.values[planned.output].type), output = value(planned.output);
  const std::int64_t flops = node.layer->flops() * options.batch;
  // An embedding reads a row of float32 for each of its output's.
  const std::int64_t weights_read = node.layer->reads_tokens() ? std::min(weights, output / operand) *
                                                                     static_cast<std::int64_t>(sizeof(float))
                                                               : operand * weights;
  const bool keeps = planned.has_backward && !step.op->recomputes_kept();
  const std::int64_t kept = keeps ? node.layer->kept_bytes() * options.batch : 0;
  step.kind = node.kind;
  step.elements = plan.values[planned.output].elements * options.batch;
  step.forward_cost = {
      inputs + output - columns + weights_read + kept + (planned.residual ? value(*planned.residual) : 0),
      flops};
  Step* const computed = step.op->computes_input() ? source_of(plan, planned) : nullptr;  // does not write it
  if (computed) {
    computed->forward_cost.bytes -= value(planned.inputs[0]);
    if (!computed->op->runs_forward()) {
      step.forward_cost.flops += computed->forward_cost.flops;
      computed->forward_cost = {};
    }
  }
  if (!planned.has_backward) return;
  OperationCost& cost = step.backward_cost;
  cost.bytes = kept;
  if (planned.sum_into) cost.bytes += 2 * gradient(*planned.sum_into);  // written and read again
  for (const std::size_t g : planned.output_gradients) cost.bytes += gradient(g);
  if (planned.masked) cost.bytes += gradient(*planned.masked);
  if (planned.backward_reads_inputs) cost.bytes += inputs;
  if (planned.backward_reads_output) cost.bytes += output;
  for (const std::size_t s : planned.recomputed) {
    if (&steps[s] == computed) continue;
    cost.bytes += value(plan.steps[s].inputs[0]) + value(plan.steps[s].output) +
                  (plan.steps[s].residual ? value(*plan.steps[s].residual) : 0);
  }
  cost.bytes += static_cast<std::int64_t>(sizeof(float)) * weights;
  cost.flops = weights > 0 ? flops : 0;
  bool reaches_input = false;
  for (const std::optional<std::size_t>& g : planned.input_gradients) {
    if (!g) continue;
    cost.bytes += plan.gradients[*g].stride == 0 ? gradient(*g) : -gradient(*g);
    reaches_input = true;
  }
  if (reaches_input) {
    cost.bytes += operand * weights;
    cost.flops += node.layer->input_gradient_flops() * options.batch;
  }
  if (!step.op->runs_rowwise_source()) return;
  // The time of both steps is this one's. The gradient between them does not go through memory.
  OperationCost& source = steps.back().backward_cost;
  cost.bytes += source.bytes - 2 * gradient(*planned.input_gradients[0]);
  cost.flops += source.flops;
  source = {};
}

Network::Impl::Step Network::Impl::make_step(const Graph& graph, const Plan& plan, const PlanStep& planned,
                                             std::byte* arena) {
  const Node& node = graph.nodes[planned.node];
  Step step(backend->stream());
  step.name = node.name;
  if (planned.output != planned.node) step.name += "+" + graph.nodes[planned.output].name;
  try {
    step.op = node.layer->make(*backend, bind(graph, plan, planned, arena));
  } catch (const LayerError& e) {
    config::fail(node.origin, fmt::format("layer '{}'", node.name), e.what());
  }
  step.has_backward = planned.has_backward;
  step.recomputed = planned.recomputed;
  // A shared tensor's gradient is final behind its owner, which comes later in backward.
  if (!node.frozen) step.tensors.assign(node.own_tensors().begin(), node.own_tensors().end());
  if (accumulation) step.mean = accumulation->mean_of(tensors, step.tensors);
  add_cost(graph, plan, planned, step);
  if (!planned.sum_into) return step;
  require(plan.values[planned.output].stride == 0, "gradients are summed in an array of their own");
  const auto gradient = [&](std::size_t g) { return plan.gradients[g].in(arena, options.batch); };
  std::vector<const void*> terms;
  for (const std::size_t g : planned.output_gradients) terms.push_back(gradient(g));
  const Plan::MemoryRange& sum = plan.gradients[*planned.sum_into];
  const void* mask = planned.masks_by_output ? plan.values[planned.output].in(arena, options.batch) : nullptr;
  step.gradient_sum = backend->sum(sum.type, gradient(*planned.sum_into), std::move(terms), mask,
                                   sum.elements * options.batch);
  return step;
}

void Network::Impl::build(const Graph& graph) {
  require(options.batch >= 1, "a network's batch is at least one sample");
  require(options.micro_batches >= 1, "a step has at least one micro-batch");
  const bool training = !options.inference_only;
  const DataType type = options.compute == Compute::bf16 ? DataType::bf16 : DataType::f32;
  const bool branches = training && uses_graphs && options.branches != Branches::never;
  const Plan plan = branches ? make_branching_plan(graph, type, options.recompute)
                             : make_plan(graph, training, type, options.recompute);
  announce_order = plan.announce_order;
  is_sequence = graph.is_sequence();
  input_frames = graph.input[0];
  make_parameters(graph);
  make_carried(graph);
  if (training && options.micro_batches > 1) accumulation.emplace(*backend, gradients, options.micro_batches);

  auto* activations = static_cast<std::byte*>(allocate_for(*backend, plan.arena, options.batch));
  const auto values = [&](std::size_t v) {
    const Plan::MemoryRange& range = plan.values[v];
    return Values{range.in(activations, options.batch), range.type, range.elements * options.batch};
  };
  const std::size_t last = plan.value_of.back();
  input = values(0);
  if (options.pixels) {
    require(graph.input.size() == 3 && graph.input[2] == options.pixels->stored.channels,
            "a network of pixels takes images with as many channels");
    const Normalization& norm = options.pixels->norm;
    require(norm.mean.size() == norm.std.size() &&
                norm.mean.size() == static_cast<std::size_t>(options.pixels->stored.channels),
            "there is a mean and a deviation for each channel");
    const ImageShape sample{graph.input[0], graph.input[1], graph.input[2]};
    pixel_input =
        backend->pixel_input({options.batch, options.pixels->stored, sample, norm, input.type, input.data});
  }
  logits = values(last);
  scored_frames = plan.values[last].elements / graph.classes;
  void* logits_gradient = training ? plan.gradients[0].in(activations, options.batch) : nullptr;
  loss =
      backend->softmax_cross_entropy(type, logits.data, logits_gradient,
                                     {options.batch, scored_frames, graph.classes, options.label_smoothing});
  for (const PlanStep& planned : plan.steps) steps.push_back(make_step(graph, plan, planned, activations));
  mean_of_all = mean_of_steps(0, steps.size());
  make_branches(graph, plan);
  backend->finish_planning();
  if (!trace) return;
  for (Step& step : steps) {
    step.forward_label = trace->label("forward " + step.name);
    step.backward_label = trace->label("backward " + step.name);
    step.evaluate_label = trace->label("evaluate " + step.name);
  }
  loss_forward_label = trace->label("forward loss");
  loss_backward_label = trace->label("backward loss");
  loss_evaluate_label = trace->label("evaluate loss");
  add_label = trace->label("add gradients");
  mean_label = trace->label("mean of gradients");
}

}  // namespace lpsgd
