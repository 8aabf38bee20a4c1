// The exchange's coder on a CUDA device: gradients, residuals and messages lie in the device's memory, and
// all work is queued on streams. If the transport does not take device memory, messages are staged through
// page-locked memory. Every unit in flight has its own buffers, so that the copies of one unit, the messages
// of a second and the coding of a third overlap.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/coder.h"
#include "core/device.h"
#include "core/stream_trace.h"
#include "quant/cuda/cuda_codec.h"

namespace lpsgd {

/// The coder's streams. They wait for each other by events; the host does not wait.
struct CodingStreams {
  StreamView compute;                                       // the caller's: writes and reads the gradients
  StreamView transport;                                     // an ordered transport's
  Stream codec{compute.device(), StreamPriority::high};     // all coding
  Stream download{compute.device(), StreamPriority::high};  // of staged messages, to the host
  Stream upload{compute.device(), StreamPriority::high};    // of staged messages, from the host
};

/// A tensor's state within the coder, in the device's memory.
struct DeviceTensor {
  DeviceBuffer<float> residual1, residual2;
  DeviceBuffer<float> staging;  // the gradient in the codec's order, if that is not memory order
  bool staged = false;          // this step's gradient is in `staging`
  std::int64_t undecoded = 0;   // elements whose mean is not decoded yet
};

class DeviceCoder final : public Coder {
 public:
  DeviceCoder(ExchangeShared& shared, const ExchangeOptions& options);

  std::unique_ptr<UnitCoder> make_unit_coder(std::span<const NumberedUnit> units) override;
  void begin_step() override;
  void submitted(std::size_t tensors, StreamView behind) override {
    if (std::optional<Event>& event = submitted_[tensors - 1])
      event->record(behind.device().is_cuda() ? behind : streams_.compute);
  }
  void waiting() override { turns_[turn_].waiting.record(streams_.compute); }
  void end_step(double busy) override;
  void joined() override;
  void launched() override;
  void drain() noexcept override;
  Times collect() override;
  std::optional<UnitOfStep> unfinished() override;
  std::int64_t read_finite_flags(bool before) override;

  void copy_residual(std::size_t tensor, int round, std::span<float> to) const override;
  void set_residual(std::size_t tensor, int round, std::span<const float> values) override;
  void take_errors(std::span<CodingError> sums) override;

  // For the units.
  ExchangeShared& shared() { return shared_; }
  const CodingStreams& streams() const { return streams_; }
  Device device() const { return streams_.compute.device(); }
  Collective collective() const { return collective_; }
  /// Whether messages are staged through page-locked memory.
  bool staged() const { return staged_; }
  bool untouched(std::size_t t) const {
    return shared_.tensors[t].untouched && collective_ != Collective::allreduce;
  }
  DeviceTensor& kept(std::size_t t) { return kept_[t]; }
  /// The gradient in the codec's order.
  float* values(std::size_t t) {
    return shared_.tensors[t].permuted ? kept_[t].staging.data() : shared_.tensors[t].gradient;
  }
  /// 1 if the own gradient, or the mean, held a non-finite value.
  std::uint32_t* own_flag(std::size_t t) { return flags_.data() + t; }
  std::uint32_t* mean_flag(std::size_t t) { return flags_.data() + kept_.size() + t; }
  /// Two sums of squares, of the gradient and of what coding lost; nullptr if they are not measured.
  double* errors(std::size_t t) { return errors_.size() > 0 ? errors_.data() + 2 * t : nullptr; }
  /// The step's number, in device memory.
  const std::uint32_t* step() const { return step_.data(); }

  /// Calls `body`, which queues copies of staged messages, and shows them in the trace.
  enum class Copies : std::uint8_t { to_host, from_host };
  template <class Body>
  void copied(Copies way, const Body& body) {
    CopyTrace* const trace = copies_[static_cast<std::size_t>(way)].get();
    trace ? trace->stream.span(trace->label, body) : body();
  }

  /// Makes the codec stream wait for the unit's gradients and permutes them into the codec's order.
  void gradients_of(const Unit& unit);
  /// The means of these segments have been written.
  void decoded(std::span<const Segment> segments);
  /// Calls `body`, which queues coding of `values` values of the unit, between two events that time it.
  template <class Body>
  void coded(CodecClock::Work work, std::size_t unit, std::int64_t values, int ranks, Body body) {
    std::vector<Span>& spans = turns_[turn_].spans;
    if (coding_ == spans.size()) spans.push_back({Event(device(), timed), Event(device(), timed)});
    Span& span = spans[coding_++];
    span.work = work;
    span.unit = unit;
    span.values = static_cast<double>(values);
    span.ranks = ranks;
    span.begin.record(streams_.codec);
    body();
    span.end.record(streams_.codec);
  }

 private:
  static constexpr Event::Timing timed = Event::Timing::on;

  struct CopyTrace {
    StreamTrace stream;
    Trace::Label label;
  };

  /// A piece of coding.
  struct Span {
    Event begin, end;
    CodecClock::Work work = CodecClock::Work::encode;
    std::size_t unit = 0;
    double values = 0;
    int ranks = 1;
  };

  /// What the host reads of a step after it is done. There are two turns, used in alternate steps: the host
  /// reads one while the device works on the other. A graph writes to the turn in which it was captured.
  struct Turn {
    const Device device;
    PinnedBuffer<std::uint32_t> flags;  // all tensors' own flags, then their mean flags
    Event opened{device, timed}, waiting{device, timed}, joined{device, timed};  // on the compute stream
    Event end{device, timed};      // on the codec stream, after all coding
    Event done{device};            // on the compute stream, after the whole step; never captured
    std::vector<Span> spans = {};  // the first `coded` are in use
    std::size_t coded = 0;
    std::int64_t step = -1;
    bool captured = false;  // a graph writes here
    bool pending = false;   // `done` is recorded, and the times are not collected
  };

  void step_queued();
  void count(Turn& turn, Times& times);

  ExchangeShared& shared_;
  const CodingStreams streams_;
  const Collective collective_;
  const bool staged_;
  std::unique_ptr<CopyTrace> copies_[2];  // of staged messages, if there is a trace
  std::vector<DeviceTensor> kept_;
  std::vector<std::optional<Event>>
      submitted_;  // by the number of tensors submitted, where a unit waits for it
  std::vector<Transposition> transpositions_;
  DeviceBuffer<std::uint32_t> flags_{device(), 2 * kept_.size()};  // as Turn::flags
  DeviceBuffer<double> errors_;                                    // two a tensor, if they are measured
  DeviceBuffer<std::uint32_t> step_{device(), 1};
  PinnedBuffer<std::uint32_t> steps_{device(), 2};  // by turn: copied to step_

  std::mutex mutex_;  // guards pending turns and `turn_`
  Turn turns_[2];
  std::size_t turn_ = 0;           // of the newest step
  std::size_t coding_ = 0;         // spans of the open step
  Event coded_{device()};          // all of a step, on the codec stream
  Event origin_{device(), timed};  // a reference point on the compute stream,
  double origin_time_ = 0;         // and its time on the host's clock
};

}  // namespace lpsgd
