// The exchange's coder on a device: gradients, residuals and messages lie in its memory, and all work is
// queued. Where the transport does not take device memory, messages are staged through page-locked memory:
// every unit in flight has a buffer of its own, so that the copies of one, the messages of the second and the
// coding of the third overlap.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/coder.h"
#include "comm/coding_device.h"

namespace lpsgd {

/// The coder that the options ask for. `order` is the announce order. ConfigError where the transport cannot
/// carry what the options say.
std::unique_ptr<Coder> make_coder(ExchangeShared& shared, const ExchangeOptions& options,
                                  std::span<const std::size_t> order, std::span<const Unit> plan);

using EventPtr = std::unique_ptr<DeviceEvent>;

/// What a device's coder keeps of a tensor, in the device's memory.
struct DeviceTensor {
  float *residual1 = nullptr, *residual2 = nullptr;
  float* staging = nullptr;  // the gradient in the codec's order, if not memory's
  std::uint32_t *own_flag = nullptr, *mean_flag = nullptr;  // 1: held a value that is not finite
  double* error = nullptr;                                  // sums of squares: the gradient's, what was lost

  bool staged = false;         // this step's gradient is in `staging`
  std::int64_t undecoded = 0;  // elements whose mean is still to come
};

class DeviceCoder final : public Coder {
 public:
  DeviceCoder(ExchangeShared& shared, const ExchangeOptions& options, std::unique_ptr<CodingDevice> owned,
              CodingDevice& device, std::span<const std::size_t> order, std::span<const Unit> plan);
  ~DeviceCoder() override = default;
  DeviceCoder(const DeviceCoder&) = delete;
  DeviceCoder& operator=(const DeviceCoder&) = delete;

  std::unique_ptr<UnitCoder> make_unit_coder(std::span<const NumberedUnit> units) override;
  void begin_step() override;
  void submitted(std::size_t tensors) override {
    if (DeviceEvent* event = submitted_[tensors - 1].get())
      device_.record(*event, CodingDevice::Queue::compute);
  }
  void end_step(double busy) override;
  void waiting() override { device_.record(*steps_.back().work->waiting, CodingDevice::Queue::compute); }
  void joined() override;
  void launched(bool launched) override;
  void drain() noexcept override;
  Times collect() override;
  std::int64_t read_finite_flags(bool before) override;

  std::vector<float> residual(std::size_t tensor, int round) const override {
    const ExchangeTensor& t = shared_.tensors[tensor];
    std::vector<float> values(round == 1 ? t.residual1 : t.residual2);
    fetch(values.data(), round == 1 ? kept_[tensor].residual1 : kept_[tensor].residual2,
          values.size() * sizeof(float));
    return values;
  }
  void set_residual(std::size_t tensor, int round, std::span<const float> values) override {
    fetch(round == 1 ? kept_[tensor].residual1 : kept_[tensor].residual2, values.data(), values.size_bytes());
  }
  void take_errors(std::span<CodingError> sums) override;

  // For the units.
  ExchangeShared& shared() { return shared_; }
  CodingDevice& device() { return device_; }
  Collective collective() const { return collective_; }
  bool staged() const { return staged_; }
  bool untouched(std::size_t t) const {
    return shared_.tensors[t].untouched && collective_ != Collective::allreduce;
  }
  const DeviceTensor& kept(std::size_t t) const { return kept_[t]; }
  float* values(std::size_t t) const {
    return shared_.tensors[t].permuted ? kept_[t].staging : shared_.tensors[t].gradient;
  }
  /// Coding of this unit may begin: its gradients are there, in the codec's order.
  void gradients_of(const Unit& unit);
  /// The means of these segments have been written.
  void decoded(std::span<const Segment> segments);
  /// Queues `body`, which codes.
  template <class Body>
  void coded(CodecClock::Work work, std::size_t unit, std::int64_t values, int ranks, Body body) {
    StepWork& step = *steps_.back().work;
    if (step.coded == step.spans.size())
      step.spans.push_back({.begin = device_.make_event(true), .end = device_.make_event(true)});
    Span& span = step.spans[step.coded++];
    span.work = work;
    span.unit = unit;
    span.values = static_cast<double>(values);
    span.ranks = ranks;
    device_.record(*span.begin, CodingDevice::Queue::codec);
    body();
    device_.record(*span.end, CodingDevice::Queue::codec);
  }

 private:
  /// A piece of coding, between two events.
  struct Span {
    CodecClock::Work work = CodecClock::Work::encode;
    std::size_t unit = 0;
    double values = 0;
    int ranks = 1;
    EventPtr begin, end;
  };

  /// What a step queues, with events that time it. A graph keeps them: they are its own.
  struct StepWork {
    EventPtr waiting, joined;  // on the compute queue
    EventPtr end;              // on the codec queue: behind all coding
    std::vector<Span> spans;   // the first `coded` are in use
    std::size_t coded = 0;
  };

  struct Step {
    EventPtr opened, done;  // on the compute queue: before and behind all of it
    StepWork* work = nullptr;
  };

  Step make_step();
  /// What the host waits for, behind all of a step.
  void mark_done();
  template <class T>
  T* allocate(std::size_t values) {
    return values > 0 ? reinterpret_cast<T*>(device_.device_memory(values * sizeof(T))) : nullptr;
  }
  /// Copies behind all coding, and waits.
  void fetch(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) device_.copy(to, from, bytes, CodingDevice::Queue::codec);
    const EventPtr event = device_.make_event(false);
    device_.record(*event, CodingDevice::Queue::codec);
    device_.synchronize(*event);
  }
  void count(Step& step, Times& times);
  Transposition to_codec(std::size_t t) const {
    const TensorInfo::Columns c = shared_.tensors[t].info.columns();
    return {shared_.tensors[t].gradient, kept_[t].staging, c.outer, c.rows, c.columns};
  }
  Transposition to_memory(std::size_t t) const {
    const TensorInfo::Columns c = shared_.tensors[t].info.columns();
    return {kept_[t].staging, shared_.tensors[t].gradient, c.outer, c.columns, c.rows};
  }

  ExchangeShared& shared_;
  const std::unique_ptr<CodingDevice> owned_;
  CodingDevice& device_;
  const Collective collective_;
  const bool staged_;
  std::vector<DeviceTensor> kept_;
  std::vector<EventPtr> submitted_;  // by the number of tensors submitted, where a unit waits for it
  std::vector<Transposition> transpositions_;

  // All tensors' flags, and sums. The host sees the flags of two steps in turn: what a step records serves
  // every second one.
  std::uint32_t* flags_ = nullptr;
  double* errors_ = nullptr;
  struct SeenFlags {
    std::uint32_t* values = nullptr;
    EventPtr there;
    std::int64_t step = -1;
  };
  SeenFlags seen_[2];  // the older first

  std::deque<Step> steps_;  // not yet collected; the open one last
  std::vector<Step> spare_steps_;
  std::deque<StepWork> works_;
  std::vector<StepWork*> spare_works_;
  StepWork* captured_[2] = {};  // that of this step comes next, then the other
  EventPtr coded_;              // all of a step, on the codec queue
  EventPtr origin_;             // a moment, and when that was on the host's clock
  double origin_time_ = 0;
};

std::unique_ptr<UnitCoder> make_device_unit_coder(DeviceCoder& coder, std::span<const NumberedUnit> units);

}  // namespace lpsgd
