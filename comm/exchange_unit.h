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
#include "comm/transport.h"
#include "core/clock.h"

namespace lpsgd {

/// Time spent in codecs by the communication thread.
class CodecClock {
 public:
  enum class Work : std::uint8_t { encode, decode, reduce };

  /// Runs `body`, which codes `values` values. A reduce counts as `ranks` decodings and one encoding, shared
  /// out by the measured cost of either.
  template <class Body>
  void run(Work work, std::int64_t values, int ranks, Body body) {
    const double start = now_seconds();
    body();
    const double end = now_seconds();
    add(work, static_cast<double>(values), ranks, start, end);
  }

  std::atomic<double> exposed_from = std::numeric_limits<double>::infinity();  // when finish() was called
  double encode = 0, decode = 0, exposed = 0;                                  // seconds of this step

 private:
  void add(Work work, double values, int ranks, double start, double end);
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

  std::unique_ptr<ErrorMeter> error;  // what coding loses, where that is asked for

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
  virtual void start(const Unit& unit, std::size_t number) = 0;
  /// Does at most one piece of coding. Returns whether anything moved.
  virtual bool advance() = 0;
  virtual bool done() const = 0;
  /// The ranks whose messages are still to come, for the warning about a step that hangs.
  virtual std::string waiting_for() const = 0;

 protected:
  void encode(std::span<const Segment> segments, std::byte* message);
  void decode(std::span<const Segment> segments, const std::byte* message);

  ExchangeShared& shared_;
  const Unit* unit_ = nullptr;
};

std::unique_ptr<UnitInFlight> make_unit_in_flight(Collective collective, ExchangeShared& shared);

}  // namespace lpsgd
