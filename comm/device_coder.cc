#include "comm/device_coder.h"

#include <algorithm>
#include <string>

#include "core/clock.h"
#include "core/error.h"

namespace lpsgd {

using Queue = CodingDevice::Queue;

DeviceCoder::DeviceCoder(ExchangeShared& shared, const ExchangeOptions& options,
                         std::unique_ptr<CodingDevice> owned, CodingDevice& device,
                         std::span<const std::size_t> order, std::span<const Unit> plan)
    : shared_(shared),
      owned_(std::move(owned)),
      device_(device),
      collective_(options.collective),
      staged_(!options.device_pointers.value_or(shared.transport.takes_device_memory())),
      kept_(shared.tensors.size()),
      submitted_(order.size()) {
  const std::size_t tensors = kept_.size();
  flags_ = allocate<std::uint32_t>(2 * tensors);
  for (SeenFlags& seen : seen_) {
    seen.values = reinterpret_cast<std::uint32_t*>(device_.host_memory(8 * tensors + 1));
    seen.there = device_.make_event(false);
  }
  if (shared.measure_error) errors_ = allocate<double>(2 * tensors);
  for (std::size_t t = 0; t < tensors; ++t) {
    const ExchangeTensor& tensor = shared.tensors[t];
    DeviceTensor& kept = kept_[t];
    kept.residual1 = allocate<float>(tensor.residual1);
    kept.residual2 = allocate<float>(tensor.residual2);
    if (tensor.permuted) kept.staging = allocate<float>(static_cast<std::size_t>(tensor.info.elements));
    kept.own_flag = flags_ + t;
    kept.mean_flag = flags_ + tensors + t;
    if (errors_ != nullptr) kept.error = errors_ + 2 * t;
  }
  for (const Unit& unit : plan)
    if (EventPtr& event = submitted_[unit.ready_after - 1]; !event) event = device_.make_event(false);
  coded_ = device_.make_event(false);
  origin_ = device_.make_event(true);
  device_.record(*origin_, Queue::compute);
  device_.synchronize(*origin_);
  origin_time_ = now_seconds();
}

void DeviceCoder::drain() noexcept {
  try {  // graphs that go on use memory and events until then
    for (const Step& step : steps_) device_.synchronize(*step.done);
  } catch (const Error&) {  // of earlier work: it has surfaced or will elsewhere
  }
}

DeviceCoder::Step DeviceCoder::make_step() {
  Step step;
  if (!spare_steps_.empty()) {
    step = std::move(spare_steps_.back());
    spare_steps_.pop_back();
  } else {
    step.opened = device_.make_event(true);
    step.done = device_.make_event(false);
  }
  if (!spare_works_.empty()) {
    step.work = spare_works_.back();
    spare_works_.pop_back();
  } else {
    step.work = &works_.emplace_back();
    for (EventPtr* event : {&step.work->waiting, &step.work->joined, &step.work->end})
      *event = device_.make_event(true);
  }
  step.work->coded = 0;
  return step;
}

void DeviceCoder::begin_step() {
  for (std::size_t t = 0; t < kept_.size(); ++t) {
    kept_[t].staged = false;
    kept_[t].undecoded = shared_.tensors[t].info.elements;
  }
  std::swap(captured_[0], captured_[1]);
  steps_.push_back(make_step());
  device_.record(*steps_.back().opened, Queue::compute);
  device_.set_step(shared_.step);
}

void DeviceCoder::end_step(double) {
  std::swap(seen_[0], seen_[1]);
  SeenFlags& seen = seen_[1];
  const std::size_t bytes = 2 * kept_.size() * sizeof(std::uint32_t);
  if (bytes > 0) {
    device_.copy(seen.values, flags_, bytes, Queue::codec);
    device_.zero(flags_, bytes, Queue::codec);
  }
  seen.step = shared_.step;
  device_.record(*steps_.back().work->end, Queue::codec);
  device_.record(*coded_, Queue::codec);
}

void DeviceCoder::joined() {
  device_.wait(Queue::compute, *coded_);
  device_.record(*steps_.back().work->joined, Queue::compute);
  mark_done();
}

void DeviceCoder::mark_done() {
  device_.record(*steps_.back().done, Queue::compute);
  device_.record(*seen_[1].there, Queue::compute);
}

void DeviceCoder::launched(bool launched) {
  Step& step = steps_.back();
  if (launched) {
    require(captured_[0] != nullptr, "a step is launched that was not captured");
    spare_works_.push_back(std::exchange(step.work, captured_[0]));
    std::swap(seen_[0], seen_[1]);
    seen_[1].step = shared_.step;
  } else {
    require(captured_[0] == nullptr, "of every second step there is one graph");
    captured_[0] = step.work;
  }
  // What joined() captured is within the graph, and so is what the codec queue did.
  mark_done();
  device_.wait(Queue::codec, *step.done);
}

// The host is never more than two steps ahead of what it has collected.
Coder::Times DeviceCoder::collect() {
  Times times;
  while (!steps_.empty()) {
    Step& step = steps_.front();
    if (steps_.size() >= 2)
      device_.synchronize(*step.done);
    else if (!device_.done(*step.done))
      break;
    count(step, times);
    steps_.pop_front();
  }
  return times;
}

void DeviceCoder::count(Step& step, Times& times) {
  StepWork& work = *step.work;
  const double opened = origin_time_ + device_.seconds(*origin_, *step.opened);
  const auto at = [&](const EventPtr& event) { return opened + device_.seconds(*step.opened, *event); };
  times.exposed += device_.seconds(*work.waiting, *work.joined);
  shared_.clock.exposed_from = at(work.waiting);
  if (work.coded > 0) times.busy += device_.seconds(*work.spans.front().begin, *work.end);
  for (const Span& span : std::span(work.spans).first(work.coded)) {
    const double begin = at(span.begin), end = at(span.end);
    shared_.clock.add(span.work, span.values, span.ranks, begin, end);
    if (shared_.trace) shared_.trace->coded(span.unit, span.work, begin, end);
  }
  if (std::ranges::find(captured_, &work) == std::end(captured_)) spare_works_.push_back(&work);
  // Times are counted from the newest step: an event's clock loses precision over hours.
  std::swap(origin_, step.opened);
  origin_time_ = opened;
  spare_steps_.push_back(std::move(step));
}

std::int64_t DeviceCoder::read_finite_flags(bool before) {
  const SeenFlags& seen = seen_[before ? 0 : 1];
  if (seen.step < 0) return -1;
  device_.synchronize(*seen.there);
  const std::size_t tensors = kept_.size();
  for (std::size_t t = 0; t < tensors; ++t) {
    ExchangeTensor& tensor = shared_.tensors[t];
    tensor.own_finite = seen.values[t] == 0;
    tensor.mean_finite = seen.values[tensors + t] == 0 && (!untouched(t) || tensor.own_finite);
  }
  return seen.step;
}

void DeviceCoder::take_errors(std::span<CodingError> sums) {
  std::vector<double> squares(2 * kept_.size());
  fetch(squares.data(), errors_, squares.size() * sizeof(double));
  device_.zero(errors_, squares.size() * sizeof(double), Queue::codec);
  device_.record(*coded_, Queue::codec);
  device_.wait(Queue::compute, *coded_);  // a step that is launched is ordered behind this queue alone
  for (std::size_t t = 0; t < kept_.size(); ++t) {
    const double lost = squares[2 * t + 1];
    sums[t].add({squares[2 * t], lost, shared_.tensors[t].residual1 > 0 ? lost : 0.0});
  }
}

void DeviceCoder::gradients_of(const Unit& unit) {
  device_.wait(Queue::codec, *submitted_[unit.ready_after - 1]);
  transpositions_.clear();
  for (const Segment& s : unit.segments)
    if (shared_.tensors[s.tensor].permuted && !std::exchange(kept_[s.tensor].staged, true))
      transpositions_.push_back(to_codec(s.tensor));
  if (!transpositions_.empty()) device_.transpose(transpositions_);
}

void DeviceCoder::decoded(std::span<const Segment> segments) {
  transpositions_.clear();
  for (const Segment& s : segments) {
    kept_[s.tensor].undecoded -= s.n;
    if (shared_.tensors[s.tensor].permuted && kept_[s.tensor].undecoded == 0)
      transpositions_.push_back(to_memory(s.tensor));
  }
  if (!transpositions_.empty()) device_.transpose(transpositions_);
}

std::unique_ptr<UnitCoder> DeviceCoder::make_unit_coder(std::span<const NumberedUnit> units) {
  return make_device_unit_coder(*this, units);
}

std::unique_ptr<Coder> make_coder(ExchangeShared& shared, const ExchangeOptions& options,
                                  std::span<const std::size_t> order, std::span<const Unit> plan) {
  const Transport& transport = shared.transport;
  if (options.coding_device == nullptr && !options.device.is_cuda()) {
    if (transport.ordered())
      throw ConfigError(std::string("exchange.transport: ") + transport.name() +
                        " moves device memory alone, but gradients are on the CPU; use mpi");
    return make_cpu_coder(shared);
  }
  if (options.device_pointers == true && !transport.takes_device_memory())
    throw ConfigError(std::string("exchange.device_pointers: the transport ") + transport.name() +
                      " does not take device memory; allowed: auto, false");
  if (options.device_pointers == false && transport.ordered())
    throw ConfigError(std::string("exchange.device_pointers: the transport ") + transport.name() +
                      " takes device memory alone; allowed: auto, true");
  std::unique_ptr<CodingDevice> owned;
  if (options.coding_device == nullptr) {
#if LPSGD_HAVE_CUDA
    owned = make_cuda_coding_device(options.device, options.compute, transport.stream());
#else
    throw DeviceError("this build has no CUDA backend");
#endif
  }
  CodingDevice& device = owned ? *owned : *options.coding_device;
  return std::make_unique<DeviceCoder>(shared, options, std::move(owned), device, order, plan);
}

}  // namespace lpsgd
