// A unit in flight: a state machine that takes one unit through its encoding, messages and decoding.
#pragma once

#include <memory>
#include <string>

#include "comm/coder.h"

namespace lpsgd {

class UnitInFlight {
 public:
  UnitInFlight(ExchangeShared& shared, std::unique_ptr<UnitCoder> coder)
      : shared_(shared), coder_(std::move(coder)) {}
  virtual ~UnitInFlight() = default;
  UnitInFlight(const UnitInFlight&) = delete;
  UnitInFlight& operator=(const UnitInFlight&) = delete;

  /// Whether the next unit may start(), after the last one is done.
  bool free() const { return coder_->free(); }
  /// Begins another unit.
  void start(NumberedUnit unit);
  /// Makes progress without waiting, with at most one piece of coding. Returns whether it made any.
  virtual bool advance() = 0;
  /// Whether its messages of round 1 have been queued. Over an ordered transport the next unit starts then.
  virtual bool under_way() const = 0;
  virtual bool done() const = 0;
  /// Call it once, when the unit is done.
  void finish();
  /// The ranks of the run whose messages have not arrived, for messages about a step that waits for them.
  virtual std::string waiting_for() const = 0;

 protected:
  /// Called by start(), after unit_ is set.
  virtual void begin() = 0;

  ExchangeShared& shared_;
  const std::unique_ptr<UnitCoder> coder_;
  NumberedUnit unit_;

 private:
  double started_ = 0;
};

std::unique_ptr<UnitInFlight> make_unit_in_flight(Collective collective, ExchangeShared& shared,
                                                  std::unique_ptr<UnitCoder> coder);

}  // namespace lpsgd
