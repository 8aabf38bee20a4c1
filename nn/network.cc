// Network: a plan bound to a backend's memory.
#include "nn/network.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "core/stopwatch.h"
#include "nn/cuda/backend.h"
#include "nn/graph.h"
#include "nn/init.h"
#include "nn/ops.h"
#include "nn/plan.h"

namespace lpsgd {

struct Network::Impl {
  struct Step {
    explicit Step(StreamView stream) : forward_time(stream), backward_time(stream) {}
    std::string name;
    std::unique_ptr<Op> op, sum;  // `sum` gathers the output's gradients for an operation that takes one
    std::vector<std::size_t> tensors;
    bool backward = false;
    Stopwatch forward_time, backward_time;
  };

  std::unique_ptr<Backend> backend;
  NetworkOptions options;
  std::vector<TensorInfo> tensors;
  std::vector<std::size_t> announce_order;
  std::vector<NamedBuffer> buffers;
  std::span<float> parameters, gradients;
  /// Activations in the backend's memory.
  struct Values {
    void* data = nullptr;
    DataType type = DataType::f32;
    std::int64_t elements = 0;
  };
  Values input, logits;
  std::int64_t longest = 1, frames = 1;  // frames of an input, and scored ones
  std::vector<float> padded;             // inputs with zeros behind the sequences' ends
  std::vector<float> host_logits;        // of the last forward, once asked for
  bool logits_on_host = false;
  std::vector<Step> steps;
  std::unique_ptr<LossOp> loss;
  std::vector<std::size_t> runs;  // of backward, each down to this step; empty: announced step by step
  bool trained = false;           // the last forward was forward_train
  bool timed = true;
  bool plain = true;  // nothing is captured

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    try {  // what operations and graphs own may be in use still
      if (backend) backend->stream().synchronize();
    } catch (const Error&) {  // of earlier work: it has surfaced or nobody asks any more
    }
  }

  template <class Fill>
  void fill(std::span<float> to, const Fill& fill) const;
  void build(const Graph& graph);
  Binding bind(const Graph& graph, const Plan& plan, const PlanStep& step, std::byte* arena);
  std::span<const float> up_to_lengths(const Samples& samples);
  void forward(const Samples& samples, const Pass& pass);
  void backward(Step& step);
  void backward(const std::function<void(std::size_t)>& announce);
  void backward_in_runs(const std::function<void(std::size_t)>& announce);
};

namespace {

/// Runs `work`, as a lap of the stopwatch where times are taken.
template <class Work>
void run_lap(Stopwatch& watch, bool timed, const Work& work) {
  if (timed) watch.start();
  work();
  if (timed) watch.stop();
}

void* allocate_for(Backend& backend, std::int64_t bytes_per_sample, std::int64_t batch) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(bytes_per_sample, batch, &bytes) || bytes > (std::int64_t{1} << 46))
    throw Error(fmt::format("the network's activations for {} samples do not fit in memory", batch));
  try {
    return backend.allocate(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("{} GB of memory for the network cannot be had", bytes >> 30));
  }
}

std::span<float> allocate_floats(Backend& backend, std::int64_t elements) {
  return {static_cast<float*>(allocate_for(backend, elements, sizeof(float))),
          static_cast<std::size_t>(elements)};
}

}  // namespace

Binding Network::Impl::bind(const Graph& graph, const Plan& plan, const PlanStep& step, std::byte* arena) {
  const std::int64_t batch = options.batch;
  const auto value = [&](std::size_t v) { return arena + plan.values[v].offset * batch; };
  const auto gradient = [&](std::size_t g) { return arena + plan.gradients[g].offset * batch; };
  const Node& node = graph.nodes[step.node];
  Binding b;
  b.batch = batch;
  b.training = !options.inference_only;
  b.random = {options.seed, static_cast<std::uint32_t>(step.node), options.first};
  b.shape = node.shape;
  b.type = plan.values[step.output].type;
  b.output = value(step.output);
  for (std::size_t i = 0; i < step.inputs.size(); ++i) {
    const std::size_t v = step.inputs[i];
    InputView in{graph.nodes[node.inputs[i]].shape, plan.values[v].type, value(v), nullptr};
    if (step.backward && step.input_gradients[i]) in.gradient = gradient(*step.input_gradients[i]);
    b.inputs.push_back(std::move(in));
  }
  for (const std::size_t t : node.tensors) {
    const std::int64_t offset = tensors[t].offset;
    b.parameters.push_back(
        {&tensors[t], parameters.data() + offset, gradients.empty() ? nullptr : gradients.data() + offset});
  }
  for (const std::size_t i : node.buffers) b.buffers.push_back(buffers[i].values.data());
  if (step.sum_into)
    b.output_gradients = {gradient(*step.sum_into)};
  else
    for (const std::size_t g : step.output_gradients) b.output_gradients.push_back(gradient(g));
  if (step.residual) b.residual = value(*step.residual);
  b.relu = step.relu;
  if (step.masked) b.masked = gradient(*step.masked);
  if (step.joins_source) b.source = steps.back().op.get();
  return b;
}

/// Writes to the backend's memory from the host: fill(values) is called with memory of the host.
template <class Fill>
void Network::Impl::fill(std::span<float> to, const Fill& fill) const {
  const StreamView stream = backend->stream();
  if (!stream.device().is_cuda()) return fill(to);
  Buffer<float> host(to.size());
  fill(host.view());
  copy_values(to, host.view(), stream);
  stream.synchronize();
}

void Network::Impl::build(const Graph& graph) {
  require(options.batch >= 1, "a network's batch is at least one sample");
  const bool training = !options.inference_only;
  const DataType type = options.compute == Compute::bf16 ? DataType::bf16 : DataType::f32;
  const Plan plan = make_plan(graph, training, type);
  tensors = graph.tensors;
  announce_order = plan.announce_order;
  longest = graph.input[0];

  parameters = allocate_floats(*backend, graph.arena);
  if (training) gradients = allocate_floats(*backend, graph.arena);
  for (const GraphBuffer& b : graph.buffers) {
    buffers.push_back({b.name, b.shape, allocate_floats(*backend, elements_of(b.shape).value_or(0))});
    fill(buffers.back().values,
         [&](std::span<float> values) { std::fill(values.begin(), values.end(), b.initial); });
  }
  fill(parameters, [&](std::span<float> values) {
    for (std::size_t t = 0; t < tensors.size(); ++t)
      initialize(tensors[t], static_cast<std::uint32_t>(t), options.seed, graph.inits[t],
                 values.subspan(static_cast<std::size_t>(tensors[t].offset),
                                static_cast<std::size_t>(tensors[t].elements)));
  });
  backend->parameters(parameters);

  auto* activations = static_cast<std::byte*>(allocate_for(*backend, plan.arena, options.batch));
  const auto value = [&](std::size_t v) -> void* {
    return activations + plan.values[v].offset * options.batch;
  };
  const auto gradient = [&](std::size_t g) -> void* {
    return activations + plan.gradients[g].offset * options.batch;
  };
  const auto values = [&](std::size_t v) {
    return Values{value(v), plan.values[v].type, plan.values[v].elements * options.batch};
  };
  const std::size_t last = plan.value_of.back();
  input = values(0);
  logits = values(last);
  frames = plan.values[last].elements / graph.classes;
  loss = backend->softmax_cross_entropy(type, logits.data, training ? gradient(0) : nullptr, options.batch,
                                        frames, graph.classes);
  for (const PlanStep& planned : plan.steps) {
    const Node& node = graph.nodes[planned.node];
    Step step(backend->stream());
    step.name = node.name;
    for (std::size_t n = planned.node; n < planned.output;) {
      n = planned.output;
      step.name += "+" + graph.nodes[n].name;
    }
    step.op = node.layer->make(*backend, bind(graph, plan, planned, activations));
    step.backward = planned.backward;
    step.tensors = node.tensors;
    if (planned.sum_into) {
      std::vector<const void*> terms;
      for (const std::size_t g : planned.output_gradients) terms.push_back(gradient(g));
      step.sum = backend->sum(type, gradient(*planned.sum_into), std::move(terms),
                              planned.relu ? value(planned.output) : nullptr,
                              plan.gradients[*planned.sum_into].elements * options.batch);
    }
    steps.push_back(std::move(step));
  }
  backend->seal();
}

/// The inputs, with zeros in place of what lies behind a sequence's end.
std::span<const float> Network::Impl::up_to_lengths(const Samples& samples) {
  if (samples.lengths.empty()) return samples.inputs;
  padded.assign(samples.inputs.begin(), samples.inputs.end());
  const std::int64_t width = input.elements / (options.batch * longest);  // of a frame
  for (std::size_t n = 0; n < samples.lengths.size(); ++n) {
    const std::int64_t length = samples.lengths[n];
    require(length >= 1 && length <= longest, "a sequence has 1 to `frames` frames");
    const auto sample = padded.begin() + static_cast<std::int64_t>(n) * longest * width;
    std::fill(sample + length * width, sample + longest * width, 0.0f);
  }
  return padded;
}

void Network::Impl::forward(const Samples& samples, const Pass& pass) {
  require(samples.inputs.size() == static_cast<std::size_t>(input.elements),
          "a batch has the network's input shape");
  require(samples.labels.size() == static_cast<std::size_t>(options.batch * frames),
          "a batch has one label a sample, or a frame");
  require(samples.lengths.empty() || samples.lengths.size() == static_cast<std::size_t>(options.batch),
          "a batch has one length a sample, or none");
  require(pass.valid >= 0 && pass.valid <= options.batch, "valid samples are part of the batch");
  backend->enter();
  backend->upload(input.data, input.type, up_to_lengths(samples));
  backend->begin(pass, samples.labels);
  const auto all = [&] {
    for (Step& step : steps) run_lap(step.forward_time, timed, [&] { step.op->forward(pass); });
    loss->forward(pass, samples.labels);
  };
  if (plain)
    all();
  else
    backend->run(pass.training ? Backend::Part::train_forward : Backend::Part::evaluate, 0, all);
  logits_on_host = false;
  trained = pass.training;
}

std::optional<std::string> unsupported(Compute compute, Device device) {
  if (!device.is_cuda()) return cpu_unsupported(compute);
  if (compute == Compute::fp32) return std::nullopt;
  const CudaDeviceInfo info = cuda_device_info(device.index);
  if (info.major >= 8) return std::nullopt;
  return fmt::format("{} needs a GPU of compute capability 8.0, {} ({}) has {}.{}; allowed: fp32",
                     compute == Compute::tf32 ? "tf32" : "bf16", device.text(), info.name, info.major,
                     info.minor);
}

Network::Network(const NetworkSpec& spec, const NetworkOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  if (options.device.is_cuda())
    impl_->backend = make_cuda_backend(options.device, options.compute, options.deterministic);
  else
    impl_->backend = make_cpu_backend(options.threads, options.compute);
  impl_->timed = options.time_operations || !options.device.is_cuda();
  impl_->plain = impl_->timed || !options.cuda_graphs;
  const ScopedDevice scope(options.device);
  impl_->build(spec.impl().graph);
}

Network::~Network() = default;

const std::vector<TensorInfo>& Network::tensors() const {
  return impl_->tensors;
}
std::span<float> Network::parameters() {
  return impl_->parameters;
}
std::span<const float> Network::parameters() const {
  return impl_->parameters;
}
std::span<float> Network::gradients() {
  return impl_->gradients;
}
std::vector<NamedBuffer> Network::buffers() {
  return impl_->buffers;
}
const std::vector<std::size_t>& Network::announce_order() const {
  return impl_->announce_order;
}

void Network::forward_train(const Samples& samples, std::int64_t step) {
  require(!impl_->options.inference_only, "an inference-only network does not train");
  impl_->forward(samples, {true, static_cast<std::uint32_t>(step), impl_->options.batch, samples.lengths});
}

void Network::forward_eval(const Samples& samples, std::int64_t valid) {
  impl_->forward(samples, {false, 0, valid, samples.lengths});
}

void Network::Impl::backward(Step& step) {
  if (!step.backward) return;
  run_lap(step.backward_time, timed, [&] {
    if (step.sum) step.sum->backward();
    step.op->backward();
  });
}

void Network::Impl::backward(const std::function<void(std::size_t)>& announce) {
  loss->backward();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    backward(*step);
    if (announce)
      for (const std::size_t t : step->tensors) announce(t);
  }
}

void Network::Impl::backward_in_runs(const std::function<void(std::size_t)>& announce) {
  std::size_t end = steps.size();
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const std::size_t begin = runs[run];
    backend->run(Backend::Part::backward_run, run, [&] {
      if (run == 0) loss->backward();
      for (std::size_t s = end; s-- > begin;) backward(steps[s]);
    });
    for (std::size_t s = end; s-- > begin;)
      for (const std::size_t t : steps[s].tensors) announce(t);
    end = begin;
  }
}

void Network::backward(const std::function<void(std::size_t)>& announce) {
  require(impl_->trained, "backward follows forward_train");
  impl_->backend->enter();
  if (impl_->plain || (announce && impl_->runs.empty()))
    impl_->backward(announce);
  else if (announce)
    impl_->backward_in_runs(announce);
  else
    impl_->backend->run(Backend::Part::backward, 0, [this] { impl_->backward({}); });
  impl_->trained = false;
}

void Network::announce_behind(std::span<const std::size_t> tensors) {
  require(impl_->runs.empty(), "the groups of a network's announcements are set once");
  for (const std::size_t t : tensors)
    require(t < impl_->tensors.size(), "an announcement of a tensor that the network does not have");
  for (std::size_t s = impl_->steps.size(); s-- > 0;) {
    const std::vector<std::size_t>& own = impl_->steps[s].tensors;
    const bool ends =
        std::ranges::any_of(own, [&](std::size_t t) { return std::ranges::count(tensors, t) > 0; });
    if (ends || s == 0) impl_->runs.push_back(s);
  }
}

BatchMetrics Network::take_metrics() {
  const LossOp::Sums sums = impl_->loss->take();
  return {sums.loss, sums.top1, sums.top5, sums.scored};
}

std::span<const float> Network::logits() const {
  if (!impl_->logits_on_host) {
    impl_->host_logits.resize(static_cast<std::size_t>(impl_->logits.elements));
    impl_->backend->download(impl_->host_logits, impl_->logits.type, impl_->logits.data);
    impl_->logits_on_host = true;
  }
  return impl_->host_logits;
}

StreamView Network::stream() const {
  return impl_->backend->stream();
}

std::vector<std::string> Network::choices() const {
  return impl_->backend->choices();
}

std::size_t Network::captured() const {
  return impl_->backend->captured();
}

bool Network::is_backward_captured() const {
  return impl_->backend->is_captured(Backend::Part::backward) ||
         impl_->backend->is_captured(Backend::Part::backward_run);
}

std::vector<OperationTime> Network::take_times() {
  std::vector<OperationTime> out;
  for (Impl::Step& step : impl_->steps)
    out.push_back({step.name, step.forward_time.take(), step.backward_time.take()});
  return out;
}

namespace {

/// Copies (a, b, c) to (a, c, b).
void swap_inner(const float* from, float* to, std::int64_t a, std::int64_t b, std::int64_t c) {
  for (std::int64_t i = 0; i < a; ++i)
    for (std::int64_t j = 0; j < b; ++j)
      for (std::int64_t k = 0; k < c; ++k) to[(i * c + k) * b + j] = from[(i * b + j) * c + k];
}

}  // namespace

void to_pytorch_order(const TensorInfo& tensor, const float* memory, float* pytorch) {
  if (tensor.kind == TensorKind::conv)
    swap_inner(memory, pytorch, tensor.shape[0], tensor.shape[2] * tensor.shape[3], tensor.shape[1]);
  else
    std::copy_n(memory, tensor.elements, pytorch);
}

void from_pytorch_order(const TensorInfo& tensor, const float* pytorch, float* memory) {
  if (tensor.kind == TensorKind::conv)
    swap_inner(pytorch, memory, tensor.shape[0], tensor.shape[1], tensor.shape[2] * tensor.shape[3]);
  else
    std::copy_n(pytorch, tensor.elements, memory);
}

}  // namespace lpsgd
