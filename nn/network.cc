// Runs a network's passes.
#include <algorithm>

#include "core/error.h"
#include "nn/cuda/backend.h"
#include "nn/network_impl.h"

namespace lpsgd {

namespace {

/// Runs `work`, and measures it as a lap of the stopwatch if `measure`.
template <class Work>
void run_lap(Stopwatch& watch, bool measure, const Work& work) {
  if (measure) watch.start();
  work();
  if (measure) watch.stop();
}

}  // namespace

Network::Impl::Impl(const NetworkOptions& network_options) : options(network_options) {
  const Device device = options.device;
  backend = device.is_cuda()
                ? make_cuda_backend(device, options.compute, options.deterministic, options.search_seconds)
                : make_cpu_backend(options.threads, options.compute);
  measures_steps = options.time_operations || !device.is_cuda();
  if (options.trace && device.is_cuda())
    trace.emplace(*options.trace, backend->stream(), "GPU: compute stream");
  uses_graphs = !measures_steps && options.cuda_graphs && !trace;
}

template <class Work>
void Network::Impl::traced(Trace::Label label, const Work& work) {
  trace ? trace->span(label, work) : work();
}

Network::Impl::~Impl() {
  try {  // operations and graphs own memory that queued work may still use
    backend->stream().synchronize();
  } catch (const Error&) {  // of earlier work: it has been reported, or nobody waits for it any more
  }
}

void Network::Impl::upload(const Samples& samples, const Pass& pass) {
  if (pixel_input) return pixel_input->upload(pass, samples.pixels, samples.read);
  backend->upload(input.data, input.type, samples.inputs, samples.read);
}

void Network::Impl::check(const Samples& samples, const Pass& pass) const {
  const auto batch = static_cast<std::size_t>(options.batch);
  if (pixel_input) {
    require(samples.pixels.size() == batch * static_cast<std::size_t>(options.pixels->stored.bytes()),
            "a batch has images of the stored shape");
    require(samples.crops.empty() || samples.crops.size() == batch, "a batch has one crop a sample, or none");
  } else {
    require(samples.inputs.size() == static_cast<std::size_t>(input.elements),
            "a batch has the network's input shape");
  }
  require(samples.labels.size() == batch * static_cast<std::size_t>(scored_frames),
          "a batch has one label a sample, or a frame");
  require(samples.lengths.empty() || samples.lengths.size() == batch,
          "a batch has one length a sample, or none");
  require(samples.continues.empty() || samples.continues.size() == batch,
          "a batch has one mark of continuation a sample, or none");
  for (const std::int32_t length : samples.lengths)
    require(length >= 0 && length <= input_frames, "a sequence has 0 to `frames` frames");
  require(is_sequence || (samples.lengths.empty() && samples.continues.empty()),
          "only sequences have lengths and continue");
  require(samples.loss_divisor >= 0, "the loss is divided by a positive number");
  require(pass.training ? samples.micro_batch == next_micro_batch
                        : samples.micro_batch >= 0 && samples.micro_batch < options.micro_batches,
          "a step's micro-batches come in order");
  require(pass.valid >= 0 && pass.valid <= options.batch, "valid samples are part of the batch");
}

/// Between the memory of the samples of all micro-batches, and that of the operations.
void Network::Impl::move_carried(const Samples& samples, bool training, bool in) {
  if (options.micro_batches == 1) return;
  const Carried& of = training ? carried : carried_in_evaluation;
  for (std::size_t i = 0; i < of.all.size(); ++i) {
    const std::span<float> running = of.running[i].values;
    const std::span<float> own = of.all[i].values.subspan(
        static_cast<std::size_t>(samples.micro_batch) * running.size(), running.size());
    copy_values(in ? running : own, in ? own : running, backend->stream());
  }
}

/// By reference: functions that hold copies would allocate memory.
template <class Work, class OnBranches>
void Network::Impl::run(Backend::Part part, std::size_t index, const Work& work,
                        const BranchSchedule& schedule, const OnBranches& on_branches) {
  if (!uses_graphs) return work();
  std::function<void()> branches;
  if (has_branches && schedule.is_parallel()) branches = std::cref(on_branches);
  backend->run(part, index, std::cref(work), branches);
}

void Network::Impl::forward(const Samples& samples, Pass pass) {
  pass.lengths = samples.lengths;
  pass.continues = samples.continues;
  pass.crops = samples.crops;
  pass.loss_divisor = samples.loss_divisor;
  pass.first = samples.micro_batch * options.batch;
  check(samples, pass);
  backend->prepare_thread();
  backend->begin(pass, samples.labels);
  move_carried(samples, pass.training, true);
  upload(samples, pass);
  const std::int64_t width = input.elements / (options.batch * input_frames);  // of a frame
  const auto all = [&] {
    if (is_sequence) backend->clear_tails(pass, input.type, input.data, input_frames, width);
    for (Step& step : steps)
      traced(pass.training ? step.forward_label : step.evaluate_label,
             [&] { run_lap(step.forward_time, measures_steps, [&] { step.op->forward(pass); }); });
    traced(pass.training ? loss_forward_label : loss_evaluate_label,
           [&] { loss->forward(pass, samples.labels); });
  };
  const auto on_branches = [&] {
    if (is_sequence) backend->clear_tails(pass, input.type, input.data, input_frames, width);
    forward_on_branches(pass);
    loss->forward(pass, samples.labels);
  };
  run(pass.training ? Backend::Part::train_forward : Backend::Part::evaluate, 0, all, forward_schedule,
      on_branches);
  move_carried(samples, pass.training, false);
  has_host_logits = false;
  is_trained = pass.training;
  if (!pass.training) return;
  micro_batch = samples.micro_batch;
  next_micro_batch = (micro_batch + 1) % options.micro_batches;
}

Network::Network(const NetworkSpec& spec, const NetworkOptions& options)
    : impl_(std::make_unique<Impl>(options)) {
  const ScopedDevice scope(options.device);
  impl_->build(spec.graph());
}

Network::~Network() = default;

const std::vector<TensorInfo>& Network::tensors() const {
  return impl_->tensors;
}
std::span<float> Network::parameters() {
  return impl_->parameters;
}
std::span<float> Network::gradients() {
  return impl_->gradients;
}
TensorArena Network::frozen() {
  return {&impl_->frozen_tensors, impl_->frozen_parameters};
}
std::vector<NamedBuffer> Network::buffers() {
  return impl_->buffers;
}
std::vector<NamedBuffer> Network::carried_state() {
  return impl_->carried.all;
}
const std::vector<std::size_t>& Network::announce_order() const {
  return impl_->announce_order;
}

void Network::forward_train(const Samples& samples, std::int64_t step) {
  require(!impl_->options.inference_only, "an inference-only network does not train");
  impl_->forward(samples,
                 {.training = true, .step = static_cast<std::uint32_t>(step), .valid = impl_->options.batch});
}

void Network::forward_eval(const Samples& samples, std::int64_t valid) {
  impl_->forward(samples, {.valid = valid});
}

void Network::Impl::backward(Step& step) {
  if (!step.has_backward) return;
  traced(step.backward_label, [&] {
    run_lap(step.backward_time, measures_steps, [&] {
      prepare_backward(step);
      step.op->backward();
    });
  });
}

void Network::Impl::prepare_backward(Step& step) {
  for (const std::size_t s : step.recomputed) steps[s].op->recompute();
  if (step.gradient_sum) step.gradient_sum->backward();
}

void Network::Impl::backward(const std::function<void(std::size_t)>& announce) {
  traced(loss_backward_label, [&] { loss->backward(); });
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    backward(*step);
    if (!announce) continue;
    mean(step->mean);
    for (const std::size_t t : step->tensors) announce(t);
  }
}

void Network::Impl::backward_whole() {
  const bool is_last = micro_batch + 1 == options.micro_batches;
  const auto finish = [this, is_last] {
    is_last ? mean(mean_of_all) : traced(add_label, [this] { accumulation->add(micro_batch == 0); });
  };
  const auto work = [&] {
    backward({});
    finish();
  };
  const auto on_branches = [&] {
    backward_on_branches(0, steps.size(), backward_schedule);
    finish();
  };
  run(is_last ? Backend::Part::backward : Backend::Part::micro_backward, is_last || micro_batch == 0 ? 0 : 1,
      work, backward_schedule, on_branches);
}

void Network::Impl::mean(const GradientAccumulation::Mean& of) {
  if (!of.is_empty()) traced(mean_label, [&] { of.run(); });
}

GradientAccumulation::Mean Network::Impl::mean_of_steps(std::size_t begin, std::size_t end) const {
  if (!accumulation) return {};
  std::vector<std::size_t> all;
  for (std::size_t s = begin; s < end; ++s)
    all.insert(all.end(), steps[s].tensors.begin(), steps[s].tensors.end());
  return accumulation->mean_of(tensors, std::move(all));
}

void Network::Impl::backward_by_segments(const std::function<void(std::size_t)>& announce) {
  std::size_t end = steps.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const std::size_t begin = segment.begin;
    const auto work = [&] {
      if (i == 0) loss->backward();
      for (std::size_t s = end; s-- > begin;) backward(steps[s]);
      mean(segment.mean);
    };
    const auto on_branches = [&] {
      backward_on_branches(begin, end, segment.schedule);
      mean(segment.mean);
    };
    run(Backend::Part::backward_segment, i, work, segment.schedule, on_branches);
    announce_segment(i, announce);
    end = begin;
  }
}

void Network::Impl::announce_segment(std::size_t index, const std::function<void(std::size_t)>& announce) {
  const std::size_t end = index == 0 ? steps.size() : segments[index - 1].begin;
  for (std::size_t s = end; s-- > segments[index].begin;)
    for (const std::size_t t : steps[s].tensors) announce(t);
}

void Network::backward(const std::function<void(std::size_t)>& announce) {
  require(impl_->is_trained, "backward follows forward_train");
  impl_->backend->prepare_thread();
  if (!announce || impl_->micro_batch + 1 < impl_->options.micro_batches)
    impl_->backward_whole();
  else if (impl_->announces_on_branches())
    impl_->backward_with_announcements(announce);
  else if (impl_->uses_graphs && !impl_->segments.empty())
    impl_->backward_by_segments(announce);
  else
    impl_->backward(announce);
  impl_->is_trained = false;
}

void Network::announce_behind(std::span<const std::size_t> tensors) {
  for (const std::size_t t : tensors)
    require(t < impl_->tensors.size(), "a segment ends behind a tensor that the network does not have");
  impl_->segments.clear();
  impl_->backend->forget(Backend::Part::backward_segment);
  // Steps of frozen layers in front of the first one with a backward would be a segment that launches
  // nothing.
  std::size_t first = 0, end = impl_->steps.size();
  while (first + 1 < impl_->steps.size() && !impl_->steps[first].has_backward) ++first;
  for (std::size_t s = impl_->steps.size(); s-- > first;) {
    const std::vector<std::size_t>& own = impl_->steps[s].tensors;
    const bool ends =
        std::ranges::any_of(own, [&](std::size_t t) { return std::ranges::count(tensors, t) > 0; });
    if (!ends && s != first) continue;
    const std::size_t begin = s == first ? 0 : s;
    impl_->segments.push_back({begin, impl_->mean_of_steps(s, end), impl_->backward_schedule_of(begin, end)});
    end = s;
  }
  impl_->announcing_tasks.clear();
}

BatchMetrics Network::take_metrics() {
  const LossOp::Sums sums = impl_->loss->take();
  return {sums.loss, sums.top1, sums.top5, sums.scored};
}

std::span<const float> Network::logits() const {
  if (!impl_->has_host_logits) {
    impl_->host_logits.resize(static_cast<std::size_t>(impl_->logits.elements));
    impl_->backend->download(impl_->host_logits, impl_->logits.type, impl_->logits.data);
    impl_->has_host_logits = true;
  }
  return impl_->host_logits;
}

StreamView Network::stream() const {
  return impl_->backend->stream();
}

StreamView Network::announcing_stream() const {
  return impl_->backend->queue();
}

std::vector<std::string> Network::choices() const {
  return impl_->backend->choices();
}

NetworkBranches Network::branches() const {
  if (!impl_->has_branches) return {};
  return {impl_->forward_schedule.branches(), impl_->backward_schedule.branches(),
          impl_->backend->branch_times()};
}

std::size_t Network::captured() const {
  return impl_->backend->captured();
}

int Network::unsettled_steps() const {
  return unsettled_runs(impl_->options.branches);
}

bool Network::is_backward_captured() const {
  return impl_->backend->is_captured(Backend::Part::backward) ||
         impl_->backend->is_captured(Backend::Part::backward_segment);
}

std::vector<OperationTime> Network::take_times() {
  std::vector<OperationTime> out;
  for (Impl::Step& step : impl_->steps)
    out.push_back({step.name, step.forward_time.take(), step.backward_time.take(), step.kind,
                   step.forward_cost, step.backward_cost, step.elements});
  return out;
}

}  // namespace lpsgd
