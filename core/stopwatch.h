// The time between two points of a stream's work, summed. On the CPU's stream it is the clock's; on a device
// it is the device's own, from events that nothing waits for while the work goes on.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "core/device.h"

namespace lpsgd {

class Stopwatch {
 public:
  explicit Stopwatch(StreamView stream) : stream_(stream) {}

  void start() {
    Lap& lap = laps_[at_];
    collect(lap);
    if (!lap.begin) {
      lap.begin.emplace(stream_.device(), Event::Timing::on);
      lap.end.emplace(stream_.device(), Event::Timing::on);
    }
    lap.begin->record(stream_);
  }
  void stop() {
    laps_[at_].end->record(stream_);
    laps_[at_].running = true;
    at_ = (at_ + 1) % laps_.size();
  }
  /// Seconds since the last take(). Waits for the last stop() on a device.
  double take() {
    for (Lap& lap : laps_) collect(lap);
    return std::exchange(seconds_, 0.0);
  }

 private:
  /// Laps go round: one is read when it comes round again, long after its work is done.
  struct Lap {
    std::optional<Event> begin, end;
    bool running = false;
  };
  void collect(Lap& lap) {
    if (!lap.running) return;
    lap.end->synchronize();
    seconds_ += seconds_between(*lap.begin, *lap.end);
    lap.running = false;
  }

  StreamView stream_;
  std::array<Lap, 16> laps_;
  std::size_t at_ = 0;
  double seconds_ = 0;
};

}  // namespace lpsgd
