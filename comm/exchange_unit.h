// A unit in flight: a state machine that takes one unit through its encoding, messages and decoding, with
// buffers that are kept from step to step.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/error_meter.h"
#include "comm/exchange.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "comm/exchange_trace.h"
#include "comm/transport.h"
#include "core/clock.h"

namespace lpsgd {

/// Time spent in codecs by the communication thread.
class CodecClock {
 public:
  using Work = ExchangeTrace::Work;

  /// Coding of `values` values from `start` to `end`. A reduce counts as `ranks` decodings and one encoding,
  /// shared out by the measured cost of either.
  void add(Work work, double values, int ranks, double start, double end);

  std::atomic<double> exposed_from = std::numeric_limits<double>::infinity();  // when finish() was called
  double encode = 0, decode = 0, exposed = 0;                                  // seconds of this step

 private:
  double encoded_ = 0, encoding_ = 0, decoded_ = 0, decoding_ = 0;  // values and seconds, since the start
};

/// What all units in flight share.
struct ExchangeShared {
  Transport& transport;
  std::vector<ExchangeTensor> tensors;
  std::uint32_t seed = 1;
  std::uint32_t step = 0;
  CodecClock clock;
  std::uint64_t bytes_sent = 0;  // of this step

  std::unique_ptr<ErrorMeter> error;     // what coding loses, where that is asked for
  std::unique_ptr<ExchangeTrace> trace;  // likewise

  CodingContext context(std::size_t tensor, int round, const std::byte* table = nullptr) const {
    return {seed,
            static_cast<std::uint32_t>(tensor),
            step,
            static_cast<std::uint32_t>(transport.rank()),
            static_cast<std::uint32_t>(round),
            table};
  }
};

class UnitInFlight {
 public:
  explicit UnitInFlight(ExchangeShared& shared) : shared_(shared) {}
  virtual ~UnitInFlight() = default;
  UnitInFlight(const UnitInFlight&) = delete;
  UnitInFlight& operator=(const UnitInFlight&) = delete;

  /// Makes the buffers large enough for `unit`.
  virtual void reserve(const Unit& unit) = 0;
  /// Takes up the unit with this number in the plan.
  void start(const Unit& unit, std::size_t number);
  /// Does at most one piece of coding. Returns whether anything moved.
  virtual bool advance() = 0;
  virtual bool done() const = 0;
  /// Once, when it is done.
  void finish();
  /// The ranks whose messages are still to come, for the warning about a step that hangs.
  virtual std::string waiting_for() const = 0;

 protected:
  /// unit_ and number_ are a new unit's.
  virtual void begin() = 0;
  /// Runs `body`, which codes `values` values of the unit.
  template <class Body>
  void coded(CodecClock::Work work, std::int64_t values, int ranks, Body body) {
    const double start = now_seconds();
    body();
    const double end = now_seconds();
    shared_.clock.add(work, static_cast<double>(values), ranks, start, end);
    if (shared_.trace) shared_.trace->coded(number_, work, start, end);
  }
  void encode(std::span<const Segment> segments, std::byte* message);
  void decode(std::span<const Segment> segments, const std::byte* message);

  ExchangeShared& shared_;
  const Unit* unit_ = nullptr;
  std::size_t number_ = 0;  // of the unit in the plan

 private:
  double started_ = 0;
};

std::unique_ptr<UnitInFlight> make_unit_in_flight(Collective collective, ExchangeShared& shared);

}  // namespace lpsgd
