#include "comm/cuda/device_coder.h"

#include <utility>

#include "core/capture.h"
#include "core/clock.h"
#include "core/error.h"

namespace lpsgd {

DeviceCoder::DeviceCoder(ExchangeShared& shared, const ExchangeOptions& options)
    : shared_(shared),
      streams_{options.compute, shared.transport.stream()},
      collective_(options.collective),
      staged_(!options.device_pointers.value_or(shared.transport.takes_device_memory())),
      kept_(shared.tensors.size()),
      submitted_(shared.tensors.size()),
      errors_(options.device, shared.measure_error ? 2 * kept_.size() : 0),
      turns_{{device(), {device(), 2 * kept_.size()}}, {device(), {device(), 2 * kept_.size()}}} {
  require(options.compute.device() == options.device, "the compute stream is another device's");
  for (std::size_t t = 0; t < kept_.size(); ++t) {
    const ExchangeTensor& tensor = shared.tensors[t];
    kept_[t].residual1 = {options.device, tensor.residual1};
    kept_[t].residual2 = {options.device, tensor.residual2};
    if (tensor.permuted) kept_[t].staging = {options.device, static_cast<std::size_t>(tensor.info.elements)};
  }
  if (shared.trace && staged_) {
    const auto make = [&](StreamView stream, const char* track, const char* name) {
      Trace& trace = shared.trace->trace();
      return std::unique_ptr<CopyTrace>(
          new CopyTrace{{trace, stream, track}, trace.label(name, "gpu_memcpy")});
    };
    copies_[0] = make(streams_.download, "GPU: copies to the host", "Memcpy DtoH");
    copies_[1] = make(streams_.upload, "GPU: copies from the host", "Memcpy HtoD");
  }
  origin_.record(streams_.compute);
  origin_.synchronize();
  origin_time_ = now_seconds();
}

void DeviceCoder::drain() noexcept {
  for (const StreamView stream : {streams_.compute, streams_.codec.view(), streams_.download.view(),
                                  streams_.upload.view(), streams_.transport}) {
    try {
      stream.synchronize();
    } catch (const Error&) {  // of earlier work: it is reported elsewhere
    }
  }
}

void DeviceCoder::begin_step() {
  for (std::size_t t = 0; t < kept_.size(); ++t) {
    kept_[t].staged = false;
    kept_[t].undecoded = shared_.tensors[t].info.elements;
  }
  const std::lock_guard lock(mutex_);
  turn_ = 1 - turn_;
  coding_ = 0;
  turns_[turn_].opened.record(streams_.compute);
  // From device memory, so that a graph codes with the number of the step in which it is launched.
  steps_[turn_] = shared_.step;
  copy_bytes(step_.data(), &steps_[turn_], sizeof steps_[turn_], streams_.compute);
}

void DeviceCoder::end_step(double) {
  Turn& turn = turns_[turn_];
  copy_values(turn.flags.view(), flags_.view(), streams_.codec);
  zero_bytes(flags_.data(), flags_.view().size_bytes(), streams_.codec);
  turn.coded = coding_;
  turn.end.record(streams_.codec);
  coded_.record(streams_.codec);
}

void DeviceCoder::joined() {
  Turn& turn = turns_[turn_];
  streams_.compute.wait(coded_);
  turn.joined.record(streams_.compute);
  if (is_capturing(streams_.compute))
    turn.captured = true;
  else
    step_queued();
}

void DeviceCoder::launched() {
  require(turns_[turn_].captured, "a graph is launched in a step that is not its turn");
  step_queued();
}

void DeviceCoder::step_queued() {
  const std::lock_guard lock(mutex_);
  Turn& turn = turns_[turn_];
  turn.done.record(streams_.compute);
  turn.step = shared_.step;
  turn.pending = true;
}

// The host is never more than two steps ahead of what it has collected.
Coder::Times DeviceCoder::collect() {
  Times times;
  Turn &older = turns_[1 - turn_], &newer = turns_[turn_];
  if (older.pending) {
    older.done.synchronize();
    count(older, times);
  }
  if (newer.pending && newer.done.done()) count(newer, times);
  return times;
}

void DeviceCoder::count(Turn& turn, Times& times) {
  const std::lock_guard lock(mutex_);
  const double opened = origin_time_ + seconds_between(origin_, turn.opened);
  const auto at = [&](const Event& event) { return opened + seconds_between(turn.opened, event); };
  times.exposed += seconds_between(turn.waiting, turn.joined);
  shared_.clock.exposed_from = at(turn.waiting);
  if (turn.coded > 0) times.busy += seconds_between(turn.spans.front().begin, turn.end);
  for (const Span& span : std::span(turn.spans).first(turn.coded)) {
    const double begin = at(span.begin), end = at(span.end);
    shared_.clock.add(span.work, span.values, span.ranks, begin, end);
    if (shared_.trace) shared_.trace->coded(span.unit, span.work, begin, end);
  }
  // The newest step becomes the reference: an event's clock loses precision over hours.
  std::swap(origin_, turn.opened);
  origin_time_ = opened;
  turn.pending = false;
}

std::optional<UnitOfStep> DeviceCoder::unfinished() {
  const std::lock_guard lock(mutex_);
  for (const std::size_t t : {1 - turn_, turn_}) {
    const Turn& turn = turns_[t];
    if (!turn.pending || turn.done.done()) continue;
    UnitOfStep at{static_cast<std::uint32_t>(turn.step), 0};
    for (const Span& span : std::span(turn.spans).first(turn.coded)) {
      at.unit = span.unit;
      try {  // until the graph records the event, it is an earlier launch's or was never recorded
        if (!span.end.done() || seconds_between(turn.opened, span.end) < 0) break;
      } catch (const DeviceError&) {
        break;
      }
    }
    return at;
  }
  return {};
}

std::int64_t DeviceCoder::read_finite_flags(bool before) {
  const Turn& turn = turns_[before ? 1 - turn_ : turn_];
  if (turn.step < 0) return -1;
  turn.done.synchronize();
  const std::size_t tensors = kept_.size();
  for (std::size_t t = 0; t < tensors; ++t) {
    ExchangeTensor& tensor = shared_.tensors[t];
    tensor.own_finite = turn.flags[t] == 0;
    tensor.mean_finite = turn.flags[tensors + t] == 0 && (!untouched(t) || tensor.own_finite);
  }
  return turn.step;
}

// Outside a step the compute stream waits for all coding, and the next step's coding waits for the compute
// stream.
void DeviceCoder::copy_residual(std::size_t tensor, int round, std::span<float> to) const {
  const DeviceBuffer<float>& kept = round == 1 ? kept_[tensor].residual1 : kept_[tensor].residual2;
  copy_values(to, kept.view(), streams_.compute);
}

void DeviceCoder::set_residual(std::size_t tensor, int round, std::span<const float> values) {
  DeviceTensor& kept = kept_[tensor];
  copy_values((round == 1 ? kept.residual1 : kept.residual2).view(), values, streams_.compute);
  streams_.compute.synchronize();
}

void DeviceCoder::take_errors(std::span<CodingError> sums) {
  std::vector<double> squares(errors_.size());
  copy_values(std::span(squares), errors_.view(), streams_.compute);
  zero_bytes(errors_.data(), errors_.view().size_bytes(), streams_.compute);
  streams_.compute.synchronize();
  for (std::size_t t = 0; t < kept_.size(); ++t) {
    const double lost = squares[2 * t + 1];
    sums[t].add({squares[2 * t], lost, shared_.tensors[t].residual1 > 0 ? lost : 0.0});
  }
}

void DeviceCoder::gradients_of(const Unit& unit) {
  streams_.codec.wait(*submitted_[unit.ready_after - 1]);
  transpositions_.clear();
  for (const Segment& s : unit.segments) {
    const ExchangeTensor& tensor = shared_.tensors[s.tensor];
    const TensorInfo::Columns c = tensor.info.columns();
    if (tensor.permuted && !std::exchange(kept_[s.tensor].staged, true))
      transpositions_.push_back({tensor.gradient, values(s.tensor), c.outer, c.rows, c.columns});
  }
  cuda_transpose(transpositions_, streams_.codec);
}

void DeviceCoder::decoded(std::span<const Segment> segments) {
  transpositions_.clear();
  for (const Segment& s : segments) {
    const ExchangeTensor& tensor = shared_.tensors[s.tensor];
    const TensorInfo::Columns c = tensor.info.columns();
    kept_[s.tensor].undecoded -= s.n;
    if (tensor.permuted && kept_[s.tensor].undecoded == 0)
      transpositions_.push_back({values(s.tensor), tensor.gradient, c.outer, c.columns, c.rows});
  }
  cuda_transpose(transpositions_, streams_.codec);
}

}  // namespace lpsgd
