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
  backend = device.is_cuda() ? make_cuda_backend(device, options.compute, options.deterministic)
                             : make_cpu_backend(options.threads, options.compute);
  measures_steps = options.time_operations || !device.is_cuda();
  uses_graphs = !measures_steps && options.cuda_graphs;
}

Network::Impl::~Impl() {
  try {  // operations and graphs own memory that queued work may still use
    backend->stream().synchronize();
  } catch (const Error&) {  // of earlier work: it has been reported, or nobody waits for it any more
  }
}

/// The inputs, with zeros behind the ends of sequences.
std::span<const float> Network::Impl::up_to_lengths(const Samples& samples) {
  if (samples.lengths.empty()) return samples.inputs;
  padded.assign(samples.inputs.begin(), samples.inputs.end());
  const std::int64_t width = input.elements / (options.batch * input_frames);  // of a frame
  for (std::size_t n = 0; n < samples.lengths.size(); ++n) {
    const std::int64_t length = samples.lengths[n];
    require(length >= 1 && length <= input_frames, "a sequence has 1 to `frames` frames");
    const auto sample = padded.begin() + static_cast<std::int64_t>(n) * input_frames * width;
    std::fill(sample + length * width, sample + input_frames * width, 0.0f);
  }
  return padded;
}

void Network::Impl::upload(const Samples& samples) {
  if (pixel_input) {
    require(samples.pixels.size() == static_cast<std::size_t>(options.batch * options.pixels->stored.bytes()),
            "a batch has images of the stored shape");
    require(samples.crops.empty() || samples.crops.size() == static_cast<std::size_t>(options.batch),
            "a batch has one crop a sample, or none");
    return pixel_input->upload(samples.pixels, samples.crops, samples.read);
  }
  require(samples.inputs.size() == static_cast<std::size_t>(input.elements),
          "a batch has the network's input shape");
  backend->upload(input.data, input.type, up_to_lengths(samples));
}

void Network::Impl::forward(const Samples& samples, const Pass& pass) {
  require(samples.labels.size() == static_cast<std::size_t>(options.batch * scored_frames),
          "a batch has one label a sample, or a frame");
  require(samples.lengths.empty() || samples.lengths.size() == static_cast<std::size_t>(options.batch),
          "a batch has one length a sample, or none");
  require(pass.valid >= 0 && pass.valid <= options.batch, "valid samples are part of the batch");
  backend->prepare_thread();
  upload(samples);
  backend->begin(pass, samples.labels);
  const auto all = [&] {
    for (Step& step : steps) run_lap(step.forward_time, measures_steps, [&] { step.op->forward(pass); });
    loss->forward(pass, samples.labels);
  };
  if (uses_graphs)
    backend->run(pass.training ? Backend::Part::train_forward : Backend::Part::evaluate, 0, all);
  else
    all();
  has_host_logits = false;
  is_trained = pass.training;
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
  if (!step.has_backward) return;
  run_lap(step.backward_time, measures_steps, [&] {
    if (step.gradient_sum) step.gradient_sum->backward();
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

void Network::Impl::backward_by_segments(const std::function<void(std::size_t)>& announce) {
  std::size_t end = steps.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t begin = segments[i];
    backend->run(Backend::Part::backward_segment, i, [&] {
      if (i == 0) loss->backward();
      for (std::size_t s = end; s-- > begin;) backward(steps[s]);
    });
    for (std::size_t s = end; s-- > begin;)
      for (const std::size_t t : steps[s].tensors) announce(t);
    end = begin;
  }
}

void Network::backward(const std::function<void(std::size_t)>& announce) {
  require(impl_->is_trained, "backward follows forward_train");
  impl_->backend->prepare_thread();
  if (!impl_->uses_graphs || (announce && impl_->segments.empty()))
    impl_->backward(announce);
  else if (announce)
    impl_->backward_by_segments(announce);
  else
    impl_->backend->run(Backend::Part::backward, 0, [this] { impl_->backward({}); });
  impl_->is_trained = false;
}

void Network::announce_behind(std::span<const std::size_t> tensors) {
  require(impl_->segments.empty(), "the segments of a network's backward are set once");
  for (const std::size_t t : tensors)
    require(t < impl_->tensors.size(), "a segment ends behind a tensor that the network does not have");
  for (std::size_t s = impl_->steps.size(); s-- > 0;) {
    const std::vector<std::size_t>& own = impl_->steps[s].tensors;
    const bool ends =
        std::ranges::any_of(own, [&](std::size_t t) { return std::ranges::count(tensors, t) > 0; });
    if (ends || s == 0) impl_->segments.push_back(s);
  }
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

std::vector<std::string> Network::choices() const {
  return impl_->backend->choices();
}

std::size_t Network::captured() const {
  return impl_->backend->captured();
}

bool Network::is_backward_captured() const {
  return impl_->backend->is_captured(Backend::Part::backward) ||
         impl_->backend->is_captured(Backend::Part::backward_segment);
}

std::vector<OperationTime> Network::take_times() {
  std::vector<OperationTime> out;
  for (Impl::Step& step : impl_->steps)
    out.push_back({step.name, step.forward_time.take(), step.backward_time.take()});
  return out;
}

}  // namespace lpsgd
