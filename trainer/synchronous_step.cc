#include "trainer/synchronous_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/agree.h"
#include "comm/block_transport.h"
#include "core/buffer.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/log.h"
#include "trainer/batch_inputs.h"
#include "trainer/step_part.h"

namespace lpsgd {

namespace {

std::int64_t parameters(const std::vector<TensorInfo>& tensors) {
  std::int64_t sum = 0;
  for (const TensorInfo& tensor : tensors) sum += tensor.elements;
  return sum;
}

/// A rank without room for it ends all ranks with its error.
DeviceBuffer<float> own_arena_of(Network& network, Transport& transport) {
  DeviceBuffer<float> out;
  collective_try(transport, [&] { out = {network.stream().device(), network.gradients().size()}; });
  return out;
}

}  // namespace

ExchangeOptions exchange_options(const RunConfig& run, Transport& transport, StreamView compute, Trace* trace,
                                 const std::vector<std::size_t>& parts) {
  ExchangeOptions o;
  o.device = compute.device();
  o.compute = compute;
  o.collective = run.exchange.collective;
  if (o.collective == Collective::hierarchical)
    o.ranks_per_block =
        block_of(transport, static_cast<int>(run.exchange.ranks_per_block), "exchange.ranks_per_block").size;
  if (o.ranks_per_block == transport.size() && transport.size() > 1 && transport.rank() == 0)
    log::warn(
        "exchange.ranks_per_block: all {} ranks are one block, so nothing travels between blocks, where "
        "codecs save bytes",
        transport.size());
  o.seed = static_cast<std::uint32_t>(run.train.seed);
  o.overlap = run.exchange.overlap;
  o.measure_error = run.metrics.codec_error;
  o.trace = trace;
  o.parts = parts;
  if (run.exchange.device_pointers != DevicePointers::automatic)
    o.device_pointers = run.exchange.device_pointers == DevicePointers::yes;
  return o;
}

std::string text(const NonFinite& found, const std::vector<TensorInfo>& tensors, const char* what) {
  const std::string& name = tensors[static_cast<std::size_t>(found.tensor)].name;
  const std::string where = found.rank >= 0 ? fmt::format("the {} of '{}' on rank {}", what, name, found.rank)
                                            : fmt::format("the mean {} of '{}'", what, name);
  return fmt::format("step {}: {} holds a NaN or an infinity", found.step, where);
}

SynchronousStep::SynchronousStep(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network,
                                 Optimizer& optimizer, Transport& transport, Trace* trace,
                                 const std::vector<std::size_t>& parts, bool own_arena)
    : run_(run),
      network_(network),
      optimizer_(optimizer),
      transport_(transport),
      on_gpu_(network.stream().device().is_cuda()),
      times_(network.stream()),
      changes_(own_arena ? own_arena_of(network, transport) : DeviceBuffer<float>()),
      exchange_(transport, network, codecs, own_arena ? changes_.view() : network.gradients(),
                exchange_options(run, transport, network.stream(), trace, parts)),
      fp32_bytes_of_step_(2 * static_cast<std::uint64_t>(transport.size() - 1) * 4 *
                          static_cast<std::uint64_t>(parameters(network.tensors()))) {
  if (trace) trace_.emplace(*trace, network_.stream());
  network_.announce_behind(exchange_->milestones());
}

void SynchronousStep::set_warmup(bool on) {
  captured_.restart();
  exchange_.set_warmup(on);
  network_.announce_behind(exchange_->milestones());
}

void SynchronousStep::forward(Loader& loader, std::int64_t number, StepTimes& at) {
  at.step = now_seconds();
  for (std::int64_t m = 1; m < run_.train.micro_batches; ++m) {
    micro_batch(loader, number, at);
    at.backward = part("backward", times_.backward, [&] { network_.backward({}); });
    if (trace_) trace_->add_micro_batch(at);
  }
  micro_batch(loader, number, at);
}

void SynchronousStep::micro_batch(Loader& loader, std::int64_t number, StepTimes& at) {
  const std::int64_t parts = transport_.size() * run_.train.micro_batches;
  at.begin = now_seconds();
  Batch batch;
  at.data = part("data", times_.data, [&] { batch = loader.next(); });
  bad_samples_.add(batch.bad_samples);
  sequences_ += sequences_in(batch);
  at.forward =
      part("forward", times_.forward, [&] { network_.forward_train(samples_of(batch, parts), number); });
}

void SynchronousStep::end_step(std::int64_t number, const StepTimes& at) {
  if (trace_) trace_->add(number, at);
  ++steps_;
}

void SynchronousStep::run(Loader& loader, std::int64_t number, double lr) {
  StepTimes at{};
  forward(loader, number, at);
  const bool captured = is_captured(number);
  exchange_->begin(static_cast<std::uint32_t>(number));
  optimizer_.set_rate(lr, number);
  has_run_ = true;
  ++exchanges_;
  if (captured) {
    captured_.run(static_cast<std::size_t>(number),
                  {[this] { backward(); }, [this] { exchange_->finish(); }, [this] { update(); },
                   [this] { exchange_->launched(); }});
    check(true);
    at.backward = at.exposed = at.forward;
    at.update = now_seconds();
  } else {
    at.backward = part("backward", times_.backward, [&] { backward(); });
    at.exposed = part("exposed communication", times_.exposed, [&] {
      exchange_->finish();
      check(on_gpu_);  // The host does not wait for this step's flags on a GPU.
    });
    at.update = update_part([&] { update(); });
  }
  end_step(number, at);
}

void SynchronousStep::backward() {
  // With one rank a GPU launches backward as one graph instead of one per milestone.
  const bool alone = transport_.size() == 1 && on_gpu_;
  if (run_.exchange.overlap && !alone)
    return network_.backward(
        [this](std::size_t tensor) { exchange_->submit(tensor, network_.announcing_stream()); });
  network_.backward({});
  for (const std::size_t tensor : network_.announce_order()) exchange_->submit(tensor);
}

/// Whether backward, exchange and update of the coming step are one launch. Collective.
bool SynchronousStep::is_captured(std::int64_t number) {
  if (!transport_.ordered()) return false;
  const auto can = [this] {
    return run_.train.cuda_graphs && exchange_->can_capture() && network_.is_backward_captured();
  };
  return captured_.wanted(transport_, number, network_.unsettled_steps(), can, network_.stream());
}

void SynchronousStep::check(bool step_before, const char* what) {
  const NonFinite found = exchange_->check_finite(step_before);
  if (found.tensor >= 0) throw NonFiniteError(text(found, network_.tensors(), what));
}

std::uint64_t SynchronousStep::checksum_of(std::span<const float> weights) const {
  if (!on_gpu_) return checksum64(std::as_bytes(weights));
  Buffer<float> host(weights.size());
  copy_values(host.view(), weights, network_.stream());
  network_.stream().synchronize();
  return checksum64(std::as_bytes(host.view()));
}

std::uint64_t SynchronousStep::frozen_checksum() const {
  const std::span<const float> frozen = network_.frozen().values;
  return frozen.empty() ? 0 : 31 * checksum_of(frozen);
}

bool SynchronousStep::replicas_equal() {
  return transport_.all_equal(checksum_of(network_.parameters()) + frozen_checksum());
}

void SynchronousStep::check_finite() {
  if (on_gpu_ && has_run_) check(false);  // The CPU has checked every step already.
}

/// The exchange and the step measure by clocks of their own.
StepMetrics SynchronousStep::take(std::span<CodingError> errors) {
  StepMetrics out = measured(errors);
  out.seconds.exposed_codec = std::min(out.seconds.exposed_codec, out.seconds.exposed_comm);
  return out;
}

StepMetrics SynchronousStep::measured(std::span<CodingError> errors) {
  StepMetrics out;
  out.batches = network_.take_metrics();
  out.sequences = std::exchange(sequences_, {});
  const PartSeconds captured = captured_.take();
  // What is on its way is counted when it has arrived.
  const bool arrived = !exchange_->is_open();
  const ExchangeStats stats = arrived ? exchange_->take_stats() : ExchangeStats{};
  out.seconds.data = times_.data.take();
  out.seconds.forward = times_.forward.take();
  out.seconds.backward = times_.backward.take() + captured.backward;
  out.seconds.encode = stats.encode;
  out.seconds.transfer = stats.transfer;
  out.seconds.decode = stats.decode;
  out.seconds.exposed_comm = times_.exposed.take() + captured.exposed;
  out.seconds.exposed_codec = stats.exposed_codec;
  out.seconds.update = times_.update.take() + captured.update;
  out.bytes_sent = stats.bytes_sent;
  if (run_.exchange.collective == Collective::hierarchical) out.bytes_between = stats.bytes_between;
  out.steps = std::exchange(steps_, 0);
  out.exchanges = std::exchange(exchanges_, 0);
  out.bad_samples = std::exchange(bad_samples_, {});
  out.bytes_fp32 = fp32_bytes_of_step_ * static_cast<std::uint64_t>(out.steps);
  if (!errors.empty() && arrived) exchange_.take_errors(errors);
  return out;
}

}  // namespace lpsgd
