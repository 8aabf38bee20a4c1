// Sums the time between pairs of points in a stream's work. On the CPU it is the clock's time. On a GPU it is
// the device's time between events, which are read long after they were recorded, so that the host does not
// wait.
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
  /// The seconds since the last take(). On a GPU, waits until the work before the last stop() is done.
  double take() {
    for (Lap& lap : laps_) collect(lap);
    return std::exchange(seconds_, 0.0);
  }

 private:
  /// Laps are used in turn. A lap is read when its turn comes again, long after its work is done.
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
