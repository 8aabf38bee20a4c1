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

  /// Whether the next unit may start(), the last one being done.
  bool free() const { return coder_->free(); }
  /// Takes up a unit.
  void start(NumberedUnit unit);
  /// Does at most one piece of coding. Returns whether anything moved.
  virtual bool advance() = 0;
  /// Whether everything that the next unit may come before has been queued: the messages of round 1.
  virtual bool under_way() const = 0;
  virtual bool done() const = 0;
  /// Once, when it is done.
  void finish();
  /// The ranks whose messages are still to come, for the warning about a step that hangs.
  virtual std::string waiting_for() const = 0;

 protected:
  /// unit_ is a new unit.
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
