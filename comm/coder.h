// Who codes for the exchange. The state machine (comm/exchange_unit.cc) says when; gradients, residuals and
// the memory of messages are a coder's own: the CPU's (comm/cpu_coder.cc) works at once, a device's
// (comm/device_coder.cc) queues its work and tells when it is done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "comm/exchange_trace.h"
#include "comm/transport.h"

namespace lpsgd {

/// Time spent in codecs, in seconds of one clock.
class CodecClock {
 public:
  using Work = ExchangeTrace::Work;

  /// Coding of `values` values from `start` to `end`. A reduce counts as `ranks` decodings and one encoding,
  /// shared out by the measured cost of either.
  void add(Work work, double values, int ranks, double start, double end);

  std::atomic<double> exposed_from = std::numeric_limits<double>::infinity();  // when waiting began
  double encode = 0, decode = 0, exposed = 0;  // seconds since the last time they were taken

 private:
  double encoded_ = 0, encoding_ = 0, decoded_ = 0, decoding_ = 0;  // values and seconds, since the start
};

/// What the exchange and its coder share.
struct ExchangeShared {
  Transport& transport;
  std::vector<ExchangeTensor> tensors;
  std::uint32_t seed = 1;
  std::uint32_t step = 0;
  bool measure_error = false;
  CodecClock clock;
  std::uint64_t bytes_sent = 0;          // of this step
  std::size_t next_sum = 0;              // the unit whose all-reduce is next: ranks call them in one order
  std::unique_ptr<ExchangeTrace> trace;  // where that is asked for

  CodingContext context(int round) const {
    return {seed, step, static_cast<std::uint32_t>(transport.rank()), static_cast<std::uint32_t>(round)};
  }
};

/// Values of the segments.
std::int64_t count_values(std::span<const Segment> segments);

/// A unit of the plan and its number there.
struct NumberedUnit {
  const Unit* unit = nullptr;
  std::size_t number = 0;
};

/// Codes one unit at a time, with buffers that are kept from step to step.
class UnitCoder {
 public:
  virtual ~UnitCoder() = default;

  /// Whether nothing of the last unit still uses the messages' memory: then the next may start.
  virtual bool free() const = 0;
  virtual void start(NumberedUnit unit) = 0;

  // The unit's messages, where the transport finds and leaves them.
  virtual std::span<std::byte> outgoing(int owner) = 0;  // round 1, the own part included
  virtual std::span<std::byte> incoming(int rank) = 0;   // round 1, of another rank
  virtual std::span<std::byte> mean(int owner) = 0;      // round 2

  /// Owners that one encode() or decode() should take: 1, or all that there are to do.
  virtual int owners_at_once() const = 0;
  /// This rank's gradient of these owners' segments, into outgoing().
  virtual void encode(std::span<const int> owners) = 0;
  /// The contributions to the own segments, in incoming() and the own outgoing(), into the own mean().
  virtual void reduce() = 0;
  /// mean() of these owners into the gradient.
  virtual void decode(std::span<const int> owners) = 0;
  /// What encode(), reduce() or pack() was last asked for may be sent.
  virtual bool ready() const = 0;

  // Without owners, for all-reduces.
  /// The unit's gradient as float32 in one piece; unpack() takes it from there, times 1/K.
  virtual std::span<float> pack() = 0;
  virtual void unpack() = 0;
  /// Decodes this rank's own outgoing(0).
  virtual void decode_own() = 0;
  /// Zeros where the transport may sum: as many as fill the unit's bytes.
  virtual std::span<float> zeros() = 0;
};

class Coder {
 public:
  virtual ~Coder() = default;

  /// For these units, which take turns.
  virtual std::unique_ptr<UnitCoder> make_unit_coder(std::span<const NumberedUnit> units) = 0;

  // By the caller's thread, no step being open: begin_step(); by the communication thread: end_step(), once
  // all units are done; by the caller's again: submitted() when the gradients of the first `tensors` tensors
  // in announce order are final, waiting() in finish() before and joined() after the communication thread is
  // waited for. Of a step that is captured, all from the first submitted() on, then launched(false); of one
  // that is launched, begin_step() and launched(true).
  virtual void begin_step() = 0;
  virtual void submitted(std::size_t tensors) = 0;
  /// `busy`: seconds of this thread's clock in which units were in flight.
  virtual void end_step(double busy) = 0;
  virtual void waiting() = 0;
  virtual void joined() = 0;
  virtual void launched(bool /*launched*/) {}
  /// Waits for what a device has been given, before units and coder go.
  virtual void drain() noexcept {}

  /// What the steps took that are over, since the last call. Coding times are added to the clock.
  struct Times {
    double exposed = 0, busy = 0;  // finish() waited; units were in flight
  };
  virtual Times collect() = 0;
  /// Fills the tensors' own_finite and mean_finite for the last step, or with `before` for the newest that
  /// needs no waiting. Returns which that is, -1 for none.
  virtual std::int64_t read_finite_flags(bool before) = 0;

  /// Residual of round 1 or 2; values in the codec's order.
  virtual std::vector<float> residual(std::size_t tensor, int round) const = 0;
  virtual void set_residual(std::size_t tensor, int round, std::span<const float> values) = 0;
  /// With ExchangeShared::measure_error: adds the sums since the last call, one entry a tensor.
  virtual void take_errors(std::span<CodingError> sums) = 0;
};

std::unique_ptr<Coder> make_cpu_coder(ExchangeShared& shared);

}  // namespace lpsgd
