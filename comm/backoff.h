// A wait that leaves the core to other threads: a few yields, then sleeps that grow from 5 to 200
// microseconds. If a compute thread shares the core there are no yields: a thread that yields then waits for
// milliseconds, while one that sleeps runs as soon as it wakes (ResNet-50 over 1 Gbit/s, one core a rank: a
// tenth of the step).
#pragma once

namespace lpsgd {

class Backoff {
 public:
  void pause();
  /// After progress: waits start short again. Whether the core is shared is remembered for a while.
  void reset() { yields_ = max_yields, nanoseconds_ = min_sleep; }

 private:
  static constexpr int max_yields = 64;
  static constexpr long min_sleep = 5'000;
  int yields_ = max_yields;
  long nanoseconds_ = min_sleep;
  double shared_until_ = 0;
};

/// Makes this thread's short sleeps precise (by default Linux adds 50 microseconds).
void prefer_short_sleeps();

}  // namespace lpsgd
